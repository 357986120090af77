"""Small networks of Hugging Face's, randomly initialised, with dropout on, and their data: no download, no file."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
)

WORDS, LENGTH, CLASSES = 29, 7, 3


def gpt2(dropout=0.1):
    """Tied embeddings, and `Conv1D` for every fully connected layer but the last."""
    torch.manual_seed(1)
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    sizes = {"n_positions": LENGTH, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, bos_token_id=0, eos_token_id=0, **sizes, **drops))


def bert(dropout=0.1):
    """Tied embeddings, with a bias of the decoder's own."""
    torch.manual_seed(1)
    drops = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    return BertForMaskedLM(BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **sizes, **drops))


def vit(dropout=0.1):
    """Patches by a convolution, a class token, a classifier."""
    torch.manual_seed(1)
    drops = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    return ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_labels=CLASSES, **sizes, **drops))


class Rows(Dataset):
    """A dictionary of tensors, row by row."""

    def __init__(self, **columns):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index):
        return {name: column[index] for name, column in self.columns.items()}


def sentences(n):
    """Words to predict; the last ones of every other sentence are padding, which has no label."""
    torch.manual_seed(2)
    words = torch.randint(1, WORDS, (n, LENGTH))
    mask = torch.ones_like(words)
    mask[::2, -2:] = 0
    return Rows(input_ids=words, attention_mask=mask, labels=words.masked_fill(mask == 0, -100))


def pictures(n):
    torch.manual_seed(2)
    return Rows(pixel_values=torch.randn(n, 3, 8, 8), labels=torch.randint(CLASSES, (n,)))


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(mine, theirs):
    """To the bit."""
    assert list(mine) == list(theirs)
    different = [name for name in mine if not torch.equal(mine[name], theirs[name])]
    assert not different
