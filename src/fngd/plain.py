"""Single numbers of a batch: plain ones on a CPU, elsewhere tensors without dimensions.

Between large kernels each call on a small tensor takes about 10 µs, whatever it does, and a layer has a dozen of them:
on a CPU they are done in Python. On other devices to read a number is to wait for it, so there they stay tensors, and
nobody does.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

Number = Tensor | float
Truth = Tensor | bool


def plain(number: Tensor) -> Any:
    """The number, as plain as it can be had without waiting."""
    return number.item() if number.device.type == "cpu" else number


def at_least(least: float, number: Number) -> Number:
    """The number, or the least one."""
    return number.clamp_min(least) if isinstance(number, Tensor) else max(number, least)


def over(number: float, divisor: Number) -> Number:
    """The quotient; infinite where the divisor is zero."""
    return number / divisor if isinstance(divisor, Tensor) or divisor else math.inf


def chosen(truth: Truth, yes: Tensor, no: Tensor | float) -> Tensor:
    """One of two tensors."""
    if isinstance(truth, Tensor):
        return torch.where(truth, yes, no)
    return yes if truth else torch.zeros_like(yes) + no


def stacked(numbers: list[Tensor] | list[float]) -> Tensor:
    """All of them in one tensor, plain ones in float64."""
    if any(isinstance(number, Tensor) for number in numbers):
        return torch.stack([torch.as_tensor(number, dtype=_dtype(number)) for number in numbers])
    return torch.tensor(numbers, dtype=_dtype(numbers[0]))


def _dtype(number: Tensor | float) -> torch.dtype:
    if isinstance(number, Tensor):
        return number.dtype
    return torch.bool if isinstance(number, bool) else torch.float64


def all_of(truths: list[Truth]) -> Truth:
    """Whether all are true; tensors may be on several devices."""
    tensors = [truth for truth in truths if isinstance(truth, Tensor)]
    if not all(truth for truth in truths if not isinstance(truth, Tensor)):
        return False
    return torch.stack([each.to(tensors[0].device) for each in tensors]).all() if tensors else True
