"""The numbers of a cell: a mean with its spread, a time to a target, a median with its range; and how each is written.

Every text says its n. Fewer than three runs are marked, since their spread says little.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FEW = 3
"""Fewer runs than this are marked."""
DASH = "–"
"""Stands where nothing was measured."""
INFINITE = "∞"


def counted(n: int) -> str:
    """The number of runs, marked if they are few.

    Args:
        n: How many.

    Returns:
        Such as "n = 3", or "n = 2 < 3".
    """
    return f"n = {n} < {FEW}" if n < FEW else f"n = {n}"


@dataclass(frozen=True)
class Unit:
    """How a metric is shown: its values times `factor`, then `suffix`."""

    factor: float
    suffix: str
    points: str
    """What differences of it are counted in."""

    def text(self, value: float) -> str:
        """A value with its unit.

        Args:
            value: As it was recorded.

        Returns:
            The text.
        """
        return f"{self.factor * value:.2f}{self.suffix}"


def unit(metric: str) -> Unit:
    """The unit of a metric: accuracies are recorded in [0, 1] and shown as percentages, the rest is shown as it is.

    Args:
        metric: Its name.

    Returns:
        The unit.
    """
    return Unit(100.0, " %", "percentage points") if metric == "accuracy" else Unit(1.0, "", f"points of {metric}")


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over runs; one run has no deviation."""

    mean: float
    deviation: float | None
    n: int

    def text(self, shown: Unit) -> str:
        """As tables show it: `97.31 ± 0.12 % (n = 3)`.

        Args:
            shown: The unit.

        Returns:
            The text.
        """
        deviation = "" if self.deviation is None else f" ± {shown.factor * self.deviation:.2f}"
        return f"{shown.factor * self.mean:.2f}{deviation}{shown.suffix} ({counted(self.n)})"


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and standard deviation (of a sample: n − 1) of some runs' values.

    Args:
        values: One of each run.

    Returns:
        The spread; None if there are no values.
    """
    if not values:
        return None
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Reach:
    """What each run took to reach a target. A miss is ∞ and counts like the others."""

    values: tuple[float, ...]

    @property
    def reached(self) -> int:
        """Runs that reached it."""
        return sum(map(math.isfinite, self.values))

    @property
    def median(self) -> float:
        """Over all runs; ∞ as soon as half of them missed."""
        return statistics.median(self.values)

    def text(self, suffix: str = "", digits: int = 1) -> str:
        """As tables show it: `12.3 s (3 of 3)`, `∞ (1 of 3)`; fewer than three runs are marked.

        Args:
            suffix: The unit with a space before it.
            digits: Digits after the point; a whole median needs none.

        Returns:
            The text.
        """
        few = f" < {FEW}" if len(self.values) < FEW else ""
        digits = 0 if self.median.is_integer() else digits
        return f"{quantity(self.median, suffix, digits)} ({self.reached} of {len(self.values)}{few})"


@dataclass(frozen=True)
class Range:
    """Median, lowest and highest of some runs' values."""

    median: float
    low: float
    high: float
    n: int


def value_range(values: Sequence[float]) -> Range | None:
    """Median, lowest and highest value.

    Args:
        values: One of each run.

    Returns:
        The range; None if there are no values.
    """
    return Range(statistics.median(values), min(values), max(values), len(values)) if values else None


def quantity(value: float, suffix: str = "", digits: int = 1) -> str:
    """A number with thousands separated, or ∞.

    Args:
        value: The number.
        suffix: Its unit with a space before it.
        digits: Digits after the point.

    Returns:
        The text.
    """
    return f"{value:,.{digits}f}{suffix}" if math.isfinite(value) else INFINITE
