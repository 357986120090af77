"""The table of cases: small models, one for each thing a layer can be or can be done to."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

M = 5


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch_dim: int = 0
    layers: int | None = None
    """How many layers are preconditioned, where that is not one for each module with a rule."""

    def data(self, dtype=torch.float64):
        """The model, its inputs and targets, always the same ones."""
        torch.manual_seed(0)
        model = self.build().to(dtype)
        inputs = [torch.randn(self.shape, dtype=torch.float64).to(dtype)]
        with torch.no_grad():
            output = copy.deepcopy(model).eval()(*inputs)
        targets = torch.randn_like(output.movedim(self.batch_dim, 0))
        return model, inputs, targets

    def loss(self, output, targets):
        """Mean over the samples of a squared error that differs a lot between them."""
        rows = (output.movedim(self.batch_dim, 0) - targets).flatten(1)
        weights = 1 + targets.flatten(1)[:, 0].abs()
        return (weights * rows.square().sum(1)).mean()


class Attention(nn.Module):
    def __init__(self, cross="self", mask=None, separate=False, batch_first=True, need_weights=False, **kwargs):
        super().__init__()
        dims = {"kdim": 6, "vdim": 10} if separate else {}
        self.inner = nn.MultiheadAttention(8, 2, batch_first=batch_first, **dims, **kwargs)
        self.cross, self.mask, self.dims, self.batch_first = cross, mask, dims, batch_first
        self.need_weights = need_weights

    def forward(self, x):
        key = {"self": x, "cross": x.flip(2)[:, :3] if self.batch_first else x.flip(2)[:3], "all": x.sin()}[self.cross]
        value = key if self.cross != "all" else x.cos()
        if self.dims:
            key, value = key[..., :6], torch.cat([value, value[..., :2]], -1)
        batch, length = (0, 1) if self.batch_first else (1, 0)
        masks = {}
        if self.mask == "causal":
            size = (x.shape[length], key.shape[length])
            masks = {"attn_mask": torch.ones(size, dtype=torch.bool).triu(1), "is_causal": True}
        elif self.mask == "padding":
            padding = torch.zeros(x.shape[batch], key.shape[length], dtype=torch.bool)
            padding[:, -1] = True
            masks = {"key_padding_mask": padding}
        elif self.mask == "both":
            scores = torch.linspace(-1, 1, x.shape[length] * key.shape[length], dtype=x.dtype)
            padding = torch.zeros(x.shape[batch], key.shape[length], dtype=x.dtype)
            padding[:, 0] = -1.0
            masks = {"attn_mask": scores.view(x.shape[length], key.shape[length]), "key_padding_mask": padding}
        elif self.mask == "heads":
            size = (x.shape[batch] * 2, x.shape[length], key.shape[length])
            masks = {"attn_mask": torch.linspace(-1, 1, size[1] * size[2], dtype=x.dtype).view(size[1:]).expand(size)}
        output, weights = self.inner(x, key, value, need_weights=self.need_weights, **masks)
        return output if weights is None else output + weights.sum(-1).sum().mul(0.0)


class Tied(nn.Module):
    def __init__(self, biases=True):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6, bias=biases), nn.Linear(6, 6, bias=biases)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Twice(nn.Module):
    def __init__(self, inner, between=torch.tanh):
        super().__init__()
        self.inner, self.between = inner, between

    def forward(self, x):
        return self.inner(self.between(self.inner(x)))


class ChannelsLast(nn.Sequential):
    def forward(self, x):
        return super().forward(x.contiguous(memory_format=torch.channels_last))


class Folded(nn.Module):
    """(M, T, d) flattened to (M·T, d) in front of a layer, as window attention does."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x):
        return self.inner(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class FoldedImages(nn.Module):
    """(M, T, C, H, W): a video whose frames go through a convolution one by one."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Conv2d(2, 3, 3, groups=1)

    def forward(self, x):
        return self.inner(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def frozen(module, name):
    getattr(module, name).requires_grad_(requires_grad=False)
    return module


def chain(*modules):
    return nn.Sequential(*modules)


def layer(kind, **kwargs):
    return kind(8, 2, dim_feedforward=12, dropout=0.0, **kwargs)


class Decoder(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.inner = layer(nn.TransformerDecoderLayer, **kwargs)

    def forward(self, x):
        return self.inner(x, x.flip(-1))


CASES = {
    "linear": Case(lambda: nn.Linear(7, 3), (M, 7)),
    "linear without bias": Case(lambda: nn.Linear(7, 3, bias=False), (M, 7)),
    "linear on sequences": Case(lambda: nn.Linear(7, 3), (M, 4, 7)),
    "linear on grids": Case(lambda: nn.Linear(7, 3, bias=False), (M, 2, 3, 7)),
    "linear, samples second": Case(lambda: nn.Linear(7, 3), (4, M, 7), batch_dim=1),
    "two linears": Case(lambda: chain(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3)), (M, 7)),
    "linear on folded sequences": Case(Folded, (M, 3, 6)),
    "linear on folded sequences, samples second": Case(Folded, (3, M, 6), batch_dim=1),
    "conv1d": Case(lambda: nn.Conv1d(3, 4, 3), (M, 3, 8)),
    "conv1d with stride and dilation": Case(lambda: nn.Conv1d(3, 4, 3, stride=2, dilation=2, padding=1), (M, 3, 9)),
    "conv2d": Case(lambda: nn.Conv2d(2, 3, 3, padding=1), (M, 2, 5, 6)),
    "conv2d without bias": Case(lambda: nn.Conv2d(2, 3, (3, 2), bias=False), (M, 2, 5, 6)),
    "conv2d with stride": Case(lambda: nn.Conv2d(2, 3, 3, stride=(2, 3), padding=(0, 2)), (M, 2, 7, 6)),
    "conv2d with dilation": Case(lambda: nn.Conv2d(2, 3, (2, 3), dilation=(3, 2), padding=2), (M, 2, 6, 6)),
    "conv2d 1x1": Case(lambda: nn.Conv2d(6, 3, 1), (M, 6, 4, 4)),
    "conv2d of one pixel": Case(lambda: nn.Conv2d(6, 3, 3), (M, 6, 3, 3)),
    "conv2d with groups": Case(lambda: nn.Conv2d(6, 4, 3, groups=2), (M, 6, 5, 5)),
    "conv2d depthwise": Case(lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), (M, 4, 4, 4)),
    "conv2d same": Case(lambda: nn.Conv2d(2, 3, (2, 3), padding="same", dilation=(1, 2)), (M, 2, 5, 6)),
    "conv2d valid": Case(lambda: nn.Conv2d(2, 3, 3, padding="valid"), (M, 2, 5, 6)),
    "conv2d circular": Case(lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (M, 2, 5, 6)),
    "conv2d reflect": Case(lambda: nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="reflect"), (M, 2, 5, 6)),
    "conv2d replicate, same": Case(
        lambda: nn.Conv2d(2, 3, (2, 3), padding="same", padding_mode="replicate"), (M, 2, 5, 6)
    ),
    "conv2d channels-last": Case(lambda: ChannelsLast(nn.Conv2d(4, 3, 3, padding=1)), (M, 4, 5, 5)),
    "conv2d on folded frames": Case(FoldedImages, (M, 3, 2, 4, 4)),
    "conv3d": Case(lambda: nn.Conv3d(2, 3, (2, 3, 2), padding=(1, 0, 1)), (M, 2, 3, 4, 3)),
    "conv3d with groups": Case(lambda: nn.Conv3d(4, 4, 2, groups=2, stride=2), (M, 4, 4, 4, 4)),
    "in-place relu": Case(
        lambda: chain(nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Conv2d(3, 2, 2), nn.ReLU(inplace=True)),
        (M, 2, 5, 5),
    ),
    "in-place relu on sequences": Case(
        lambda: chain(nn.Linear(7, 6), nn.ReLU(inplace=True), nn.Linear(6, 3), nn.ReLU(inplace=True)), (M, 4, 7)
    ),
    "in-place relu on grids, without bias": Case(
        lambda: chain(nn.Linear(7, 6, bias=False), nn.ReLU(inplace=True), nn.Linear(6, 3)), (M, 2, 3, 7)
    ),
    "in-place relu in one dimension and in three": Case(
        lambda: chain(
            nn.Conv1d(2, 3, 3),
            nn.ReLU(inplace=True),
            nn.Unflatten(2, (2, 1, 2)),
            nn.Conv3d(3, 2, 1),
            nn.ReLU(inplace=True),
        ),
        (M, 2, 6),
    ),
    "attention, changed in place": Case(lambda: chain(Attention(), nn.ReLU(inplace=True)), (M, 4, 8)),
    "attention": Case(Attention, (M, 4, 8)),
    "attention with weights": Case(lambda: Attention(need_weights=True), (M, 4, 8)),
    "attention, sequence first": Case(lambda: Attention(batch_first=False), (4, M, 8), batch_dim=1),
    "attention without bias": Case(lambda: Attention(bias=False), (M, 4, 8)),
    "cross attention": Case(lambda: Attention("cross"), (M, 4, 8)),
    "cross attention, sequence first": Case(lambda: Attention("cross", batch_first=False), (4, M, 8), batch_dim=1),
    "attention of three inputs": Case(lambda: Attention("all"), (M, 4, 8)),
    "attention with kdim and vdim": Case(lambda: Attention("all", separate=True), (M, 4, 8)),
    "attention with kdim and vdim, without bias": Case(lambda: Attention("all", separate=True, bias=False), (M, 4, 8)),
    "causal attention": Case(lambda: Attention(mask="causal"), (M, 4, 8)),
    "causal attention with weights": Case(lambda: Attention(mask="causal", need_weights=True), (M, 4, 8)),
    "padded attention": Case(lambda: Attention(mask="padding"), (M, 4, 8)),
    "attention with both masks": Case(lambda: Attention("all", mask="both"), (M, 4, 8)),
    "attention with a mask for each head": Case(lambda: Attention(mask="heads"), (M, 4, 8)),
    "attention with added keys": Case(lambda: Attention(add_bias_kv=True, mask="padding"), (M, 4, 8)),
    "attention with added keys and zeros": Case(
        lambda: Attention("cross", add_bias_kv=True, add_zero_attn=True, need_weights=True, mask="both"), (M, 4, 8)
    ),
    "encoder layer": Case(lambda: layer(nn.TransformerEncoderLayer, batch_first=True), (M, 4, 8)),
    "encoder layer, sequence first": Case(lambda: layer(nn.TransformerEncoderLayer), (4, M, 8), batch_dim=1),
    "decoder layer": Case(lambda: Decoder(batch_first=True), (M, 4, 8)),
    "tied weights": Case(Tied, (M, 6), layers=1),
    "tied weights, no biases": Case(lambda: Tied(biases=False), (M, 6), layers=1),
    "linear called twice": Case(lambda: Twice(nn.Linear(6, 6)), (M, 6)),
    "convolution called twice": Case(lambda: Twice(nn.Conv2d(2, 2, 3, padding=1)), (M, 2, 5, 5)),
    "attention called twice": Case(lambda: Twice(Attention()), (M, 4, 8)),
    "frozen weight": Case(lambda: frozen(nn.Linear(7, 3), "weight"), (M, 7)),
    "frozen bias": Case(lambda: frozen(nn.Conv2d(2, 3, 3), "bias"), (M, 2, 5, 5)),
    "frozen layer below": Case(
        lambda: chain(frozen(frozen(nn.Linear(7, 6), "weight"), "bias"), nn.Linear(6, 3)), (M, 7)
    ),
}
