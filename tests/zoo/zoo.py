"""The zoo: models as people train them, tiny, in float64, at drawn parameters, each with a batch and a loss.

A batch is a dictionary of keyword arguments, as users of transformers have it. `Specimen.shares` says how much of the
batch's loss is sample m's: a mean over tokens gives a sample its share of the tokens. `python tests/zoo/zoo.py` prints
the table of docs/models.md.
"""

import collections
import sys
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

import fngd

M, VOCABULARY, IGNORED = 4, 50, -100


@dataclass(frozen=True)
class Specimen:
    model: nn.Module
    batch: dict[str, Tensor]
    shares: Tensor
    """Each sample's part of the mean, (M,): they add up to one."""

    def loss(self, model, batch):
        """The loss as the user writes it: the model's own if it is handed labels, else a mean over the samples."""
        return model(**batch).loss

    def one(self, m):
        """The batch of sample m alone."""
        return {key: value[m : m + 1] for key, value in self.batch.items()}


def drawn(model, seed=1):
    """The model in float64 and in training, every parameter moved: no bias is zero and no norm is the identity."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.1)
    return model


def images(size, channels=3):
    return torch.randn(M, channels, size, size, dtype=torch.float64)


def classes():
    return torch.randint(5, (M,))


def equal():
    return torch.full((M,), 1 / M, dtype=torch.float64)


def sentences(length):
    """Tokens, the mask of those that are there, and labels for some of them: no two samples have the same number."""
    tokens = torch.randint(2, VOCABULARY, (M, length))
    mask = (torch.arange(length) < torch.arange(length, length - M, -1).unsqueeze(1)).long()
    return tokens, mask, tokens.masked_fill(mask == 0, IGNORED)


def token_shares(labels):
    counted = (labels != IGNORED).sum(1).double()
    return counted / counted.sum()


def vit(attention="sdpa"):
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4,
        num_labels=5, attn_implementation=attention,
    )  # fmt: skip
    model = drawn(transformers.ViTForImageClassification(config))
    return Specimen(model, {"pixel_values": images(8), "labels": classes()}, equal())


def swin():
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=4, mlp_ratio=2.0,
        drop_path_rate=0.0, num_labels=5,
    )  # fmt: skip
    model = drawn(transformers.SwinForImageClassification(config))
    return Specimen(model, {"pixel_values": images(16), "labels": classes()}, equal())


def convnext():
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2, num_labels=5, layer_scale_init_value=0.5
    )
    model = drawn(transformers.ConvNextForImageClassification(config))
    return Specimen(model, {"pixel_values": images(8), "labels": classes()}, equal())


def bert(attention="sdpa"):
    """Masked language modelling: padded sentences, labels for a part of the tokens, the decoder tied."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation=attention,
    )  # fmt: skip
    tokens, mask, labels = sentences(7)
    labels[:, ::3] = IGNORED
    batch = {"input_ids": tokens, "token_type_ids": tokens % 2, "attention_mask": mask, "labels": labels}
    return Specimen(drawn(transformers.BertForMaskedLM(config)), batch, token_shares(labels))


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=12, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    tokens, mask, labels = sentences(6)
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    return Specimen(drawn(transformers.GPT2LMHeadModel(config)), batch, token_shares(labels[:, 1:]))


def t5():
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, relative_attention_num_buckets=6,
        relative_attention_max_distance=8, dropout_rate=0.0, use_cache=False, decoder_start_token_id=0,
    )  # fmt: skip
    tokens, mask, _ = sentences(6)
    labels = sentences(5)[2]
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    return Specimen(drawn(transformers.T5ForConditionalGeneration(config)), batch, token_shares(labels))


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=6, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24,
        max_source_positions=8,
        max_target_positions=12, pad_token_id=0, bos_token_id=1, eos_token_id=1, decoder_start_token_id=2,
        use_cache=False, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    labels = sentences(5)[2]
    batch = {"input_features": torch.randn(M, 6, 16, dtype=torch.float64), "labels": labels}
    return Specimen(drawn(transformers.WhisperForConditionalGeneration(config)), batch, token_shares(labels))


@dataclass(frozen=True)
class Returned:
    loss: Tensor


class UNet(nn.Module):
    """Down by strides, up once by interpolation and once by a transposed convolution, joined to the way down."""

    def __init__(self):
        super().__init__()
        self.first, self.down, self.deep = _double(3, 4), nn.Conv2d(4, 8, 3, stride=2, padding=1), _double(8, 8)
        self.bottom = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.up, self.joined = nn.ConvTranspose2d(8, 8, 2, stride=2), _double(16, 4)
        self.last, self.head = _double(8, 4), nn.Conv2d(4, 5, 1)

    def forward(self, image, labels):
        wide = self.first(image)
        deep = self.deep(self.down(wide))
        up = self.joined(torch.cat([self.up(self.bottom(deep)), deep], 1))
        output = self.head(self.last(torch.cat([interpolate(up, scale_factor=2), wide], 1)))
        return Returned(cross_entropy(output, labels))


def _double(channels, out):
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, padding=1), nn.GroupNorm(2, out), nn.ReLU(inplace=True),
        nn.Conv2d(out, out, 3, padding=1, bias=False), nn.GroupNorm(2, out), nn.ReLU(inplace=True),
    )  # fmt: skip


def unet():
    batch = {"image": images(8), "labels": torch.randint(5, (M, 8, 8))}
    return Specimen(drawn(UNet()), batch, equal())


class Mixer(nn.Module):
    """MLP-Mixer: one perceptron over the tokens, by a transpose, and one over the channels."""

    def __init__(self, tokens=4, width=16):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.over_tokens, self.over_channels = _perceptron(tokens, 6), _perceptron(width, 24)
        self.head = nn.Linear(width, 5)

    def forward(self, image, labels):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = x + self.over_tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.over_channels(self.norms[1](x))
        return Returned(cross_entropy(self.head(self.norms[2](x).mean(1)), labels))


def _perceptron(width, hidden):
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def mixer():
    return Specimen(drawn(Mixer()), {"image": images(8), "labels": classes()}, equal())


ZOO = {
    "ViT": vit,
    "Swin": swin,
    "ConvNeXt": convnext,
    "BERT": bert,
    "GPT-2": gpt2,
    "T5": t5,
    "Whisper": whisper,
    "U-Net": unet,
    "MLP-Mixer": mixer,
}


def table():
    """What each model gets, in Markdown, from what the doctor says."""
    lines = ["| model | weighted | plain gradient | frozen | to know |", "|---|---|---|---|---|"]
    for name, build in ZOO.items():
        specimen = build()
        diagnosis = fngd.doctor(specimen.model, **specimen.batch)
        kinds = {gradient: _counted(diagnosis, gradient) for gradient in ("weighted", "plain", "none")}
        lines.append(f"| {name} | {' | '.join(kinds.values())} | {_remarks(diagnosis)} |")
    return "\n".join(lines)


def _counted(diagnosis, gradient):
    kinds = collections.Counter(row.kind for row in diagnosis.rows if row.gradient == gradient)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _remarks(diagnosis):
    remarks = {"(Embedding) add": "tied", "sees": "folded"}
    return ", ".join(word for text, word in remarks.items() if any(text in warning for warning in diagnosis.warnings))


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
