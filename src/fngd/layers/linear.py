"""Fully connected layers: `torch.nn.Linear`, and Hugging Face's `Conv1D`, which stores its weight transposed."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fngd.layers.base import Layer
from fngd.layers.registry import register_layer


@register_layer(nn.Linear)
def linear(module: nn.Linear, layer: Layer, x: Tensor) -> Tensor:
    """x: (M, *, d_in), or wherever `batch_dim` says the samples are."""
    return layer.linear(x, module.weight, module.bias)


@register_layer("transformers.pytorch_utils.Conv1D")
def transposed_linear(module: nn.Module, layer: Layer, x: Tensor) -> Tensor:
    """x: (M, *, d_in); the weight is (d_in, d_out)."""
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor)
    return layer.linear(x, weight.t(), bias)


def project(module: nn.Linear, layer: Layer | None, x: Tensor, batch_dim: int, batch: int | None) -> Tensor:
    """A linear module inside another one whose rule knows where the samples are; plain if it has no layer."""
    if layer is None:
        return F.linear(x, module.weight, module.bias)
    return layer.linear(x, module.weight, module.bias, batch_dim, batch)
