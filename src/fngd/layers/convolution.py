"""Convolutions in one, two and three dimensions, with any stride, dilation, groups, padding and padding mode."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fngd.layers.base import Layer
from fngd.layers.registry import register_layer


@register_layer(nn.Conv1d, replaces=("forward", "_conv_forward"))
@register_layer(nn.Conv2d, replaces=("forward", "_conv_forward"))
@register_layer(nn.Conv3d, replaces=("forward", "_conv_forward"))
def convolution(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, layer: Layer, x: Tensor) -> Tensor:
    """x: (M, channels, *space). Paddings that are not the same zeros on both sides are done first, by torch."""
    padding = module.padding
    if module.padding_mode != "zeros":
        x = F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
        padding = (0,) * len(module.kernel_size)
    elif isinstance(padding, str):
        x, padding = _padded(module, x)
    return layer.convolution(x, module.weight, module.bias, module.stride, padding, module.dilation, module.groups)


def _padded(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """padding="same" or "valid" as numbers; where "same" is odd, the extra zero goes to the far side, as in torch."""
    if module.padding == "valid":
        return x, (0,) * len(module.kernel_size)
    totals = [spread * (k - 1) for spread, k in zip(module.dilation, module.kernel_size, strict=True)]
    if any(total % 2 for total in totals):
        x = F.pad(x, [side for total in reversed(totals) for side in (0, total % 2)])
    return x, tuple(total // 2 for total in totals)
