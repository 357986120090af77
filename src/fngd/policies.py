"""When coefficients are derived, and what the other steps use: one small object for each answer.

A policy says three things: does this step derive, how much does the newest batch count in the running mean c̃, and
what do sharing steps make of c̃. A new policy is a class with these three methods, in this file or in the user's code.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class Policy(ABC):
    """When to derive coefficients and how to share them."""

    @abstractmethod
    def derives(self, step: int) -> bool:
        """Whether optimizer step number `step` (the first is 0) computes its own coefficients."""

    def weight(self, count: Tensor) -> Tensor:
        """The share of the newest batch in c̃, when it is batch number `count`; 1/count makes c̃ the plain mean."""
        return 1.0 / count

    def share(self, mean: Tensor) -> Tensor:
        """The coefficients of a sharing step, made of c̃ (M,): one for each position, or one for all: (1,)."""
        return mean


@dataclass(frozen=True)
class Shared(Policy):
    """The paper's method: derive for `derive_steps` steps (one epoch), then share their mean, position by position.

    Args:
        derive_steps: Optimizer steps that derive; `len(loader)` is the paper's choice.
    """

    derive_steps: int

    def __post_init__(self) -> None:
        _check_steps("derive_steps", self.derive_steps)

    def derives(self, step: int) -> bool:
        return step < self.derive_steps


@dataclass(frozen=True)
class Fresh(Policy):
    """Derive at every step: plain natural gradient descent, the method "without sharing"."""

    def derives(self, step: int) -> bool:
        return True


@dataclass(frozen=True)
class Refreshed(Policy):
    """Derive one step in `every`; the steps between share a running mean that forgets.

    Args:
        every: A step derives when its number is a multiple of this.
        decay: How much of c̃ survives a new batch, in [0, 1). Until there are 1/(1 − decay) batches, c̃ is their mean.
    """

    every: int
    decay: float

    def __post_init__(self) -> None:
        _check_steps("every", self.every)
        if not 0.0 <= self.decay < 1.0:
            raise ValueError(
                f"decay={self.decay!r} must be at least 0 and below 1: the part of c̃ that a new batch leaves"
            )

    def derives(self, step: int) -> bool:
        return step % self.every == 0

    def weight(self, count: Tensor) -> Tensor:
        return torch.clamp(1.0 / count, min=1.0 - self.decay)


@dataclass(frozen=True)
class Constant(Policy):
    """The control: derive as `Shared` does, then use one number for each layer, the mean of its c̃.

    If a sample's position in the batch carried anything, `Shared` would beat this; it costs nothing at all.

    Args:
        derive_steps: Optimizer steps that derive.
    """

    derive_steps: int

    def __post_init__(self) -> None:
        _check_steps("derive_steps", self.derive_steps)

    def derives(self, step: int) -> bool:
        return step < self.derive_steps

    def share(self, mean: Tensor) -> Tensor:
        return mean.mean(0, keepdim=True)


def _check_steps(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number of steps, at least 1; len(loader) is one epoch")
