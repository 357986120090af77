"""Torch's autocast, which shortens the arguments of a product: done by us where a node of ours stands in its way."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def cast_as_autocast(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """What torch's autocast does to the arguments of a product, where it is on: float64 is left alone."""
    if not torch._C._is_any_autocast_enabled() or x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return x, weight, bias
    dtype = torch.get_autocast_dtype(x.device.type)

    def cast(t: Tensor) -> Tensor:
        return t if t.dtype == torch.float64 else t.to(dtype)

    return cast(x), cast(weight), None if bias is None else cast(bias)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A block in which products keep the dtype of their arguments."""
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()
