"""The kinds of step that a method takes, and how often each comes.

KFAC measures its statistics every 10 steps and inverts every 100, Shampoo likewise. To see a hundred steps of each at
every size would take hours, so each kind of step is timed apart, by an optimizer that takes no other:

    plain        neither measures nor inverts          1 − 1/S of the steps
    statistics   measures at every step                1/S − 1/P of the steps
    inverse      measures and inverts at every step    1/P of the steps

with S steps from one measurement to the next and P from one inverse to the next. The mean over a period is then
Σ share · seconds. What this leaves out: a step of one kind that follows one of another may find colder caches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from fngd_bench import optimizers
from fngd_bench.errors import InputError
from fngd_bench.price.methods import DERIVE_STEPS, METHODS, Method
from fngd_bench.price.methods import parse as parse_methods
from fngd_bench.price.record import REFERENCE

NEVER = 10**9
"""An interval that no benchmark sees the end of; the first step does everything all the same, untimed."""
_LR = 1e-3


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of step of one method."""

    method: str
    name: str
    share: float
    """Of all steps that are of this kind."""
    make: Callable[[nn.Module], Optimizer]
    shares: bool = False
    """Whether the clock runs in the share phase only."""
    second_order: bool = False


def kinds(method: str) -> tuple[Kind, ...]:
    """The kinds of step of a method; the last one does all that the others do.

    Args:
        method: One of `names()`.

    Returns:
        One kind for most methods.
    """
    row = METHODS[method]
    if row.period == 1:
        return (_only(row),)
    recipe = optimizers.method(method).recipe
    S, P = recipe.get("statistics_every", 1), recipe["inverse_every"]
    assert isinstance(S, int)
    assert isinstance(P, int)
    assert P % S == 0, f"{method} inverts every {P} steps and measures every {S}: whole intervals are needed"
    rows = (("plain", 1 - 1 / S, NEVER, NEVER), ("statistics", 1 / S - 1 / P, 1, NEVER), ("inverse", 1 / P, 1, 1))
    return tuple(
        Kind(method=method, name=name, share=share, make=_maker(method, statistics, inverse))
        for name, share, statistics, inverse in rows
        if share > 0
    )


def _only(row: Method) -> Kind:
    return Kind(
        method=row.name, name="every", share=1.0, make=row.make, shares=row.shares, second_order=row.second_order
    )


def _maker(method: str, statistics_every: int, inverse_every: int) -> Callable[[nn.Module], Optimizer]:
    """An optimizer of the table with other intervals."""
    row = optimizers.method(method)
    intervals = {"statistics_every": statistics_every, "inverse_every": inverse_every}
    known = {name: value for name, value in intervals.items() if name in row.recipe}
    recipe = optimizers.resolve(row, "images", {"lr": _LR, **known})
    return lambda model: optimizers.make(row, model, recipe, DERIVE_STEPS)


def names() -> tuple[str, ...]:
    """The methods whose steps can be told apart by kind: those with one kind only, and those with intervals."""
    table = optimizers.METHODS
    return tuple(
        name
        for name, row in METHODS.items()
        if row.period == 1 or (name in table and "inverse_every" in table[name].recipe)
    )


def parse(methods: str) -> tuple[str, ...]:
    """Methods from a comma-separated list; the reference comes first if it is not named.

    Args:
        methods: Such as "sgd,fngd-share".

    Returns:
        Their names, in order.

    Raises:
        InputError: If one is unknown, named twice, or its kinds of step cannot be told apart.
    """
    words = parse_methods(methods)
    mixed = [word for word in words if word not in names()]
    if mixed:
        raise InputError(
            f"methods={methods!r}: {mixed[0]} takes steps of several kinds that are not timed apart here; price it "
            f"with `fngd bench step`, and choose from {', '.join(names())}"
        )
    assert REFERENCE in words
    return words
