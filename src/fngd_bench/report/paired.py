"""Two methods over the same seeds: the mean of the paired differences and Student's interval around it.

A pair of runs with one seed starts from the same weights and sees the same batches, so their difference is free of
what the seed does to both. With d_1 … d_n of mean d̄ and standard deviation s, the interval is d̄ ± t·s/√n, where a
Student variable of n − 1 degrees of freedom lies inside ±t with probability 0.95. Needs neither torch nor scipy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

COVERAGE = 0.95


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences; the interval of one pair is infinite."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def shown(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


def difference(values: Sequence[float], others: Sequence[float]) -> Difference:
    """The mean of values[k] − others[k] and its interval.

    Args:
        values: One of each pair.
        others: The other of each.

    Returns:
        The difference.
    """
    gaps = [value - other for value, other in zip(values, others, strict=True)]
    mean = statistics.fmean(gaps)
    if len(gaps) < 2:
        return Difference(mean, -math.inf, math.inf, len(gaps))
    half = quantile(len(gaps) - 1) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return Difference(mean, mean - half, mean + half, len(gaps))


def quantile(freedom: int, coverage: float = COVERAGE) -> float:
    """The t with P(|T| ≤ t) = coverage, by bisection.

    Args:
        freedom: Degrees of freedom, at least 1.
        coverage: The probability.

    Returns:
        t.
    """
    low, high = 0.0, 1.0
    while inside(high, freedom) < coverage:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle, freedom) < coverage else (low, middle)
    return high


def inside(t: float, freedom: int) -> float:
    """P(|T| ≤ t) of Student's distribution, a finite sum for whole degrees of freedom ν.

    With tan θ = t/√ν: sin θ·(1 + ½cos²θ + ½·¾cos⁴θ + …) for even ν, and for odd ν
    (2/π)·(θ + sin θ cos θ·(1 + ⅔cos²θ + ⅔·⅘cos⁴θ + …)); both end with the power ν − 2 of the cosine.

    Args:
        t: At least 0.
        freedom: ν, at least 1.

    Returns:
        The probability.
    """
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = 1.0, 0.0
    for k in range(freedom // 2):
        total += term
        term *= cosine**2 * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    return 2 / math.pi * (angle + sine * cosine * total) if odd else sine * total
