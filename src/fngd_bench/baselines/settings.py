"""The checked numbers of the baselines, and which parameters torch's fused SGD takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from fngd_bench.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the preconditioner is set to."""

    damping: float
    decay: float
    """The weight of the old running average; the new value has 1 − decay."""
    kl_clip: float
    statistics_every: int = 1
    inverse_every: int = 1

    def __post_init__(self) -> None:
        if not _is_number(self.damping) or not 0 < self.damping < math.inf:
            raise InputError(f"damping={self.damping!r} must be a finite number above 0, such as 0.01")
        if not _is_number(self.decay) or not 0 <= self.decay < 1:
            raise InputError(
                f"decay={self.decay!r} must be at least 0 and below 1: it weights the old running average, and 0 keeps "
                "the newest statistics only"
            )
        if not _is_number(self.kl_clip) or not self.kl_clip > 0:
            raise InputError(f"kl_clip={self.kl_clip!r} must be above 0; float('inf') clips nothing")
        for name, value in (("statistics_every", self.statistics_every), ("inverse_every", self.inverse_every)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name}={value!r} must be a whole number of steps, at least 1")


def check_update(*, lr: float | Tensor, momentum: float, weight_decay: float) -> None:
    """Refuse numbers that SGD's update cannot take.

    Args:
        lr: Learning rate.
        momentum: Factor of the momentum buffer.
        weight_decay: Factor of the L2 penalty.

    Raises:
        InputError: If one is negative or not finite.
    """
    for name, value in {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}.items():
        single = isinstance(value, Tensor) and value.numel() == 1
        if not (single or _is_number(value)) or not 0 <= float(value) < math.inf:
            raise InputError(f"{name}={value!r} must be a finite number, 0 or above, as in torch.optim.SGD")


def can_fuse(model: nn.Module) -> bool:
    """Whether torch's fused SGD takes every parameter: it knows no sparse gradients and only some devices.

    Args:
        model: The model.

    Returns:
        True if it does.
    """
    sparse = any(getattr(module, "sparse", False) for module in model.modules())
    usual = all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps", "xpu") for p in model.parameters())
    return usual and not sparse


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
