"""One row of the table of methods, and what can be done with it: resolve its recipe, make its optimizer, go back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from fngd_bench.errors import InputError
from fngd_bench.optimizers.domains import DOMAINS
from fngd_bench.runs.events import Setting

Recipe = Mapping[str, Setting]
"""Hyperparameters by name."""
FAMILIES = ("images", "translation")


@dataclass(frozen=True, kw_only=True)
class Range:
    """The values of a hyperparameter that `fngd tune` draws from."""

    low: float
    high: float
    log: bool = True

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"low={self.low!r} must be below high={self.high!r}, and above 0 on a log scale")


class Maker(Protocol):
    """Makes the optimizer of a method."""

    def __call__(
        self, model: nn.Module, recipe: Recipe, steps_per_epoch: int, /, params: ParamsT | None = None
    ) -> Optimizer:
        """Make it.

        Args:
            model: The model to train.
            recipe: Every hyperparameter.
            steps_per_epoch: Optimizer steps in one pass over the training samples.
            params: Parameters or groups of them, as torch takes them; all of the model's by default.

        Returns:
            The optimizer.
        """


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to train."""

    name: str
    about: str
    make: Maker
    recipe: Recipe
    """Every hyperparameter that can be set, for classifiers of images."""
    translation: Recipe
    """What differs for the Transformer."""
    space: Mapping[str, Range]
    """What `fngd tune` varies."""
    second_order: bool = False
    """Whether its gradients must themselves be differentiable: `backward` sees to it."""
    one_process: str | None = None
    """Why it cannot train in several processes; None if it can."""

    def __post_init__(self) -> None:
        for names in (self.translation, self.space):
            assert set(names) <= set(self.recipe), f"{self.name}: {sorted(set(names) - set(self.recipe))}"
        for name, value in {**self.recipe, **self.translation}.items():
            assert value is None or DOMAINS[name].holds(value), f"{self.name}: {name}={value!r}"


def resolve(method: Method, family: str, overrides: Recipe) -> dict[str, Setting]:
    """Every hyperparameter of a method: its recipe for a family of problems, with some values replaced.

    Args:
        method: The method.
        family: "images" or "translation".
        overrides: The values to replace.

    Returns:
        The hyperparameters.

    Raises:
        InputError: If the family or a hyperparameter is not known, or a value is out of range.
    """
    if family not in FAMILIES:
        raise InputError(f"family={family!r} is not known: choose one of {', '.join(FAMILIES)}")
    recipe = {**method.recipe, **(method.translation if family == "translation" else {})}
    _check(method, overrides)
    return {name: _like(value, overrides.get(name, value)) for name, value in recipe.items()}


def make(
    method: Method, model: nn.Module, hyperparameters: Recipe, steps_per_epoch: int, params: ParamsT | None = None
) -> Optimizer:
    """The optimizer of a method.

    Args:
        method: The method.
        model: The model to train.
        hyperparameters: What `resolve` returned.
        steps_per_epoch: Optimizer steps in one pass over the training samples: FNGD derives for that long.
        params: Parameters or groups of them, as torch takes them; all of the model's by default.

    Returns:
        The optimizer.

    Raises:
        InputError: If a hyperparameter is missing, unknown or out of range, or the method cannot train this model.
    """
    if steps_per_epoch < 1:
        raise InputError(
            f"steps_per_epoch={steps_per_epoch} must be at least 1: an epoch without a step trains nothing"
        )
    missing = [name for name in method.recipe if name not in hyperparameters]
    if missing:
        raise InputError(f"{missing[0]} of {method.name} is missing: `resolve` fills in the recipe")
    _check(method, hyperparameters)
    try:
        return method.make(model, hyperparameters, steps_per_epoch, params)
    except ValueError as error:
        raise InputError(f"{method.name} cannot be made: {error}") from error


def backward(loss: Tensor, model: nn.Module, *, second_order: bool) -> None:
    """Leave in every `p.grad` what the method's optimizer needs.

    A second-order method differentiates the gradients again. `loss.backward(create_graph=True)` would warn of the
    cycle between a parameter and its gradient, so gradients are asked for and put in place; they do not accumulate.

    Args:
        loss: The loss.
        model: The model.
        second_order: What the method says of itself.
    """
    if not second_order:
        torch.autograd.backward(loss)
        return
    held = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, held, create_graph=True, allow_unused=True)
    for parameter, gradient in zip(held, gradients, strict=True):
        parameter.grad = gradient


def _check(method: Method, values: Recipe) -> None:
    for name, value in values.items():
        if name not in method.recipe:
            raise InputError(
                f"{name}={value!r} is not a hyperparameter of {method.name}: choose from {', '.join(method.recipe)}"
            )
        domain = DOMAINS[name]
        if not domain.holds(value) and not (value is None and method.recipe[name] is None):
            usual = f"; {method.recipe[name]!r} is the recipe's"
            raise InputError(f"{name}={value!r} of {method.name} must be {domain.rule}{usual}")


def _like(usual: Setting, value: Setting) -> Setting:
    """Whole numbers where the recipe has fractions are fractions too: a record says 1.0, whoever wrote 1."""
    return float(value) if isinstance(usual, float) and isinstance(value, int) else value


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The hyperparameters as constructors take them: `beta1` and `beta2` become `betas`.

    Args:
        recipe: The hyperparameters.

    Returns:
        A dictionary of one's own.
    """
    settings: dict[str, Any] = dict(recipe)
    if "beta1" in settings:
        settings["betas"] = (settings.pop("beta1"), settings.pop("beta2"))
    return settings
