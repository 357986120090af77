"""When coefficients are derived, and what the other steps use: one small object for each answer.

A policy says three things: does this step derive, how much does the newest batch count in the running mean c̃, and
what do sharing steps make of c̃. A new policy is a class with these three methods, in this file or in the user's code.
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class Policy(ABC):
    """When to derive coefficients and how to share them.

    Example:
        >>> import fngd
        >>> class FirstOfTen(fngd.Policy):
        ...     def derives(self, step: int) -> bool:
        ...         return step % 10 == 0
        >>> [step for step in range(30) if FirstOfTen().derives(step)]
        [0, 10, 20]
    """

    @abstractmethod
    def derives(self, step: int) -> bool:
        """Whether optimizer step number `step` (the first is 0) computes its own coefficients."""

    def weight(self, count: Tensor) -> Tensor:
        """The share of the newest batch in c̃, when it is batch number `count`; 1/count makes c̃ the plain mean.

        Asked of all layers at once, entry by entry: (layers,).
        """
        return 1.0 / count

    def share(self, mean: Tensor) -> Tensor:
        """The coefficients of a sharing step, made of c̃ (M,): one for each position, or one for all: (1,)."""
        return mean


@dataclass(frozen=True)
class Shared(Policy):
    """The paper's method: derive for `derive_steps` steps (one epoch), then share their mean, position by position.

    Args:
        derive_steps: Optimizer steps that derive; `len(loader)` is the paper's choice.

    Example:
        >>> import torch, fngd
        >>> optimizer = fngd.FNGD(torch.nn.Linear(4, 2), lr=0.1, policy=fngd.Shared(100))
    """

    derive_steps: int

    def __post_init__(self) -> None:
        _check_steps("derive_steps", self.derive_steps)

    def derives(self, step: int) -> bool:
        return step < self.derive_steps


@dataclass(frozen=True)
class Fresh(Policy):
    """Derive at every step: plain natural gradient descent, the method "without sharing".

    Example:
        >>> import torch, fngd
        >>> optimizer = fngd.FNGD(torch.nn.Linear(4, 2), lr=0.1, policy=fngd.Fresh())
    """

    def derives(self, step: int) -> bool:
        return True


@dataclass(frozen=True)
class Refreshed(Policy):
    """Derive one step in `every`; the steps between share a running mean that forgets.

    Args:
        every: A step derives when its number is a multiple of this.
        decay: How much of c̃ survives a new batch, in [0, 1). Until there are 1/(1 − decay) batches, c̃ is their mean.

    Example:
        >>> import torch, fngd
        >>> optimizer = fngd.FNGD(torch.nn.Linear(4, 2), lr=0.1, policy=fngd.Refreshed(every=10, decay=0.9))
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

    Example:
        >>> import torch, fngd
        >>> optimizer = fngd.FNGD(torch.nn.Linear(4, 2), lr=0.1, policy=fngd.Constant(100))
    """

    derive_steps: int

    def __post_init__(self) -> None:
        _check_steps("derive_steps", self.derive_steps)

    def derives(self, step: int) -> bool:
        return step < self.derive_steps

    def share(self, mean: Tensor) -> Tensor:
        return mean.mean(0, keepdim=True)


@dataclass(frozen=True)
class FromHead(Policy):
    """Derive at every step, from the output layer alone: every layer below inherits its coefficients.

    The head's Gram matrix gives c = (I + K/(λM))⁻¹ r with λ = α‖K‖_F, divided by its mean, so that `lr` keeps its
    meaning. The head multiplies its output gradient by c before it computes anything; ordinary backpropagation does
    the rest. It is training on the loss (1/M) Σ_m c_m ℓ_m with c held constant, and gradients of inputs are that
    loss's too. All other layers are plain torch, which is why it costs next to nothing for a classifier, whose head has
    one position for each sample.

    Differs from the paper: there each layer has coefficients of its own, from its own Gram matrix.

    Args:
        alpha: The damping rule; it is this one that counts, and not the optimizer's `alpha`.
        rhs: The right-hand side r: "ones" as in the paper, or "residual", each sample's ‖z_m‖² divided by their mean
            (the improved empirical Fisher): samples that are fitted already no longer get the longest steps.
        head: The name of the output layer; by default the one through which the model's output is reached.

    Example:
        >>> import torch, fngd
        >>> optimizer = fngd.FNGD(torch.nn.Linear(4, 2), lr=0.1, policy=fngd.FromHead(rhs="residual"))
    """

    alpha: float = 0.005
    rhs: str = "ones"
    head: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not 0 < self.alpha < math.inf:
            raise ValueError(
                f"alpha={self.alpha!r} must be a finite number above 0: the damping is alpha times the norm of the "
                "head's Gram matrix; 0.005 is usual"
            )
        if self.rhs not in ("ones", "residual"):
            raise ValueError(f"rhs={self.rhs!r} must be 'ones' or 'residual': the right-hand side of the solve")
        if self.head is not None and not isinstance(self.head, str):
            raise ValueError(
                f"head={self.head!r} must be the name of a module, as in model.named_modules(), or None to look for it"
            )

    def derives(self, step: int) -> bool:
        return True

    def weight(self, count: Tensor) -> Tensor:
        """One: what is kept are the coefficients of the latest whole batch, since they belong to its samples."""
        return torch.ones_like(count)


def _check_steps(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number of steps, at least 1; len(loader) is one epoch")
