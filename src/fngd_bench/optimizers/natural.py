"""The natural gradient's rows: FNGD under each policy, and under AdamW. λ and lengths come from the recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.optimizer import ParamsT

import fngd
from fngd_bench.composite import Preconditioned
from fngd_bench.optimizers.method import Maker, Recipe, settings_of

Chooser = Callable[[dict[str, Any], int], fngd.Policy]
"""The policy, from settings of which it takes its own away, and the steps of an epoch."""


def shared(settings: dict[str, Any], steps_per_epoch: int) -> fngd.Policy:
    """Derive for some epochs, then share, position by position.

    Args:
        settings: Loses `derive_epochs`.
        steps_per_epoch: Steps of an epoch.

    Returns:
        The policy.
    """
    return fngd.Shared(_derive_steps(settings, steps_per_epoch))


def constant(settings: dict[str, Any], steps_per_epoch: int) -> fngd.Policy:
    """Derive for some epochs, then use one number for each layer.

    Args:
        settings: Loses `derive_epochs`.
        steps_per_epoch: Steps of an epoch.

    Returns:
        The policy.
    """
    return fngd.Constant(_derive_steps(settings, steps_per_epoch))


def fresh(_settings: dict[str, Any], _steps_per_epoch: int) -> fngd.Policy:
    """Derive at every step."""
    return fngd.Fresh()


def refreshed(settings: dict[str, Any], _steps_per_epoch: int) -> fngd.Policy:
    """Derive one step in a few."""
    return fngd.Refreshed(settings.pop("every"), settings.pop("decay"))


def from_head(rhs: str) -> Chooser:
    """Derive at every step from the output layer alone.

    Args:
        rhs: The right-hand side of the head's solve.

    Returns:
        What makes the policy.
    """

    def choose(settings: dict[str, Any], _steps_per_epoch: int) -> fngd.Policy:
        return fngd.FromHead(settings.pop("alpha"), rhs)

    return choose


def _derive_steps(settings: dict[str, Any], steps_per_epoch: int) -> int:
    epochs: float = settings.pop("derive_epochs")
    return max(1, round(epochs * steps_per_epoch))


def under_sgd(choose: Chooser, *, scale_by_damping: bool = False) -> Maker:
    """`fngd.FNGD` under a policy.

    Args:
        choose: The policy.
        scale_by_damping: Whether each layer's gradient is multiplied by its 1/λ.

    Returns:
        What makes the optimizer.
    """

    def make(model: nn.Module, recipe: Recipe, steps_per_epoch: int, params: ParamsT | None = None) -> Optimizer:
        settings = settings_of(recipe)
        policy = choose(settings, steps_per_epoch)
        return fngd.FNGD(model, params, policy=policy, scale_by_damping=scale_by_damping, **settings)

    return make


def under_adamw(choose: Chooser) -> Maker:
    """`fngd.NaturalGradient` under fused AdamW.

    Args:
        choose: The policy.

    Returns:
        What makes the optimizer.
    """

    def make(model: nn.Module, recipe: Recipe, steps_per_epoch: int, params: ParamsT | None = None) -> Optimizer:
        settings = settings_of(recipe)
        policy = choose(settings, steps_per_epoch)
        natural = {name: settings.pop(name) for name in ("alpha", "damping")}
        adamw = AdamW(model.parameters() if params is None else params, fused=True, **settings)
        return Preconditioned(model, adamw, policy=policy, **natural)

    return make
