"""The table of methods whose step is priced, each with the state it is in while the clock runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

import fngd
from fngd_bench import optimizers
from fngd_bench.composite import preconditioner
from fngd_bench.errors import InputError
from fngd_bench.price.record import REFERENCE

DERIVE_STEPS = 2
"""Untimed deriving steps of the methods that share while the clock runs."""
REFRESH = 10
_LR, _MOMENTUM = 1e-3, 0.9  # small: random targets are learnt slowly enough that gradients stay ordinary numbers


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to train, priced."""

    name: str
    make: Callable[[nn.Module], Optimizer]
    shares: bool = False
    """Whether the clock runs in the share phase only; deriving is over by then."""
    period: int = 1
    """Steps after which its costs repeat."""
    second_order: bool = False
    """Whether its gradients must be differentiable themselves."""


def _sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=_LR, momentum=_MOMENTUM, fused=True)


def _fngd(policy: fngd.Policy) -> Callable[[nn.Module], Optimizer]:
    return lambda model: fngd.FNGD(model, lr=_LR, momentum=_MOMENTUM, policy=policy)


def _of_table(name: str, *, shares: bool = False) -> Method:
    """A row of the table of methods with its recipe; the intervals of its recipe are the period of its costs."""
    row = optimizers.method(name)
    recipe = optimizers.resolve(row, "images", {"lr": _LR})
    period = recipe.get("inverse_every", 1)
    assert isinstance(period, int)
    return Method(
        name=name,
        make=lambda model: optimizers.make(row, model, recipe, DERIVE_STEPS),
        shares=shares,
        period=period,
        second_order=row.second_order,
    )


_ROWS = (
    Method(name=REFERENCE, make=_sgd),
    Method(name="fngd-share", make=_fngd(fngd.Shared(DERIVE_STEPS)), shares=True),
    Method(name="fngd-constant", make=_fngd(fngd.Constant(DERIVE_STEPS)), shares=True),
    Method(name="fngd-derive", make=_fngd(fngd.Fresh())),
    Method(name="fngd-refreshed", make=_fngd(fngd.Refreshed(REFRESH, 0.9)), period=REFRESH),
    Method(name="fngd-head", make=_fngd(fngd.FromHead())),
    *map(_of_table, ("adamw", "muon", "shampoo", "soap", "adahessian", "kfac", "eva")),
    _of_table("fngd-adamw", shares=True),
)
METHODS: dict[str, Method] = {row.name: row for row in _ROWS}


def parse(names: str) -> tuple[str, ...]:
    """Methods from a comma-separated list; the reference comes first if it is not named.

    Args:
        names: Such as "sgd,fngd-share".

    Returns:
        Their names, in order.

    Raises:
        InputError: If one is unknown, named twice, or none is named.
    """
    words = tuple(word.strip() for word in names.split(",") if word.strip())
    unknown = [word for word in words if word not in METHODS]
    if unknown or not words:
        wrong = f"{unknown[0]!r} is not known" if unknown else "no method is named"
        raise InputError(f"methods={names!r}: {wrong}; choose from {', '.join(METHODS)}")
    if len(set(words)) < len(words):
        raise InputError(f"methods={names!r} names one method twice: name each once")
    return words if REFERENCE in words else (REFERENCE, *words)


def check_steps(steps: int, names: tuple[str, ...], processes: int = 1) -> None:
    """Refuse a number of steps that leaves a method's periodic costs half counted.

    Args:
        steps: Timed steps.
        names: Methods.
        processes: That share them.

    Raises:
        InputError: If a number is below 1, or the steps are no multiple of the processes and of a method's period.
    """
    if processes < 1:
        raise InputError(f"processes={processes} must be at least 1")
    if steps < 1:
        raise InputError(f"steps={steps} must be at least 1; 60 give an interval worth reading")
    periods = {name: METHODS[name].period for name in names if METHODS[name].period > 1}
    together = processes * math.lcm(*periods.values())
    if steps % together:
        which = ", ".join(f"{name} every {period}" for name, period in periods.items())
        why = f"some costs come back only every few steps ({which})" if periods else ""
        shared = f"each of {processes} processes takes as many" if processes > 1 else ""
        raise InputError(
            f"steps={steps} must be a multiple of {together}, since {' and '.join(filter(None, (why, shared)))}: pass "
            f"--steps {steps + -steps % together}"
        )


def check_sharing(name: str, optimizer: Optimizer) -> None:
    """Refuse to time a method that still derives when it is to share.

    Args:
        name: Of the method.
        optimizer: Its optimizer.

    Raises:
        RuntimeError: If it still derives.
    """
    natural = preconditioner(optimizer)
    if natural is not None and natural.phase != "share":
        raise RuntimeError(f"{name} still derives: more warm-up rounds are needed before the clock runs")
