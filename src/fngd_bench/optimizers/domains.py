"""What values a hyperparameter may take, by its name; the same name means the same in every method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fngd_bench.runs.events import Setting


@dataclass(frozen=True)
class Domain:
    """The values that are allowed."""

    rule: str
    """Completes the sentence "it must be …"."""
    holds: Callable[[Setting], bool]


def _number(rule: str, holds: Callable[[float], bool]) -> Domain:
    def check(value: Setting) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and holds(value)

    return Domain(rule, check)


FROM_ZERO = _number("a finite number, 0 or above", lambda value: value >= 0)
POSITIVE = _number("a finite number above 0", lambda value: value > 0)
FRACTION = _number("a number from 0 to below 1", lambda value: 0 <= value < 1)
POWER = _number("a number above 0 and up to 1", lambda value: 0 < value <= 1)
COUNT = Domain(
    "a whole number, at least 1",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
)
SWITCH = Domain("True or False", lambda value: isinstance(value, bool))

DOMAINS: dict[str, Domain] = {
    "lr": FROM_ZERO,
    "weight_decay": FROM_ZERO,
    "momentum": FRACTION,
    "nesterov": SWITCH,
    "beta1": FRACTION,
    "beta2": FRACTION,
    "eps": POSITIVE,
    "alpha": POSITIVE,
    "damping": POSITIVE,
    "decay": FRACTION,
    "kl_clip": POSITIVE,
    "hessian_power": POWER,
    "samples": COUNT,
    "derive_epochs": POSITIVE,
    "every": COUNT,
    "statistics_every": COUNT,
    "inverse_every": COUNT,
    "largest": COUNT,
}
