"""Paired ratios: what a method costs in units of another that ran beside it.

Round r times every method once, so t_r / s_r is free of whatever slowed the machine down in that round. The price is
the median over the rounds. Its interval needs no assumption on the distribution: of n sorted values, the k-th smallest
and the k-th largest enclose the median with probability 1 − 2·P(Binomial(n, ½) < k). Needs neither torch nor numpy.

Rounds of one process are not independent: they share its place in memory. Of several processes, each is one value, the
median of its own rounds, and n counts processes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

COVERAGE = 0.95
"""The least probability with which an interval holds the median, where there are enough rounds."""


@dataclass(frozen=True)
class Ratio:
    """The median of n paired ratios and the interval around it."""

    median: float
    low: float
    high: float
    n: int

    def text(self, digits: int = 3) -> str:
        """As tables show it: `1.012 [1.010, 1.015]`; fewer than three rounds are marked.

        Args:
            digits: Digits after the point.

        Returns:
            The text.
        """
        mark = f" (n = {self.n})" if self.n < 3 else ""
        return f"{self.median:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]{mark}"


def paired_ratio(values: Sequence[float], reference: Sequence[float], period: int = 1, processes: int = 1) -> Ratio:
    """The median of values[r] / reference[r] and its interval.

    A method with a cost that comes back every `period` rounds is compared over whole periods: sums first, then ratios.
    Otherwise the median would hide that cost.

    Args:
        values: What the method took in each round.
        reference: What the reference took in the same rounds.
        period: Rounds to add up before a ratio is formed; it divides the number of rounds.
        processes: That the rounds are from, one after the other, as many from each.

    Returns:
        The ratio; n counts periods, or processes if there are several.

    Raises:
        ValueError: If there are no rounds, or the lengths do not fit.
    """
    if not values or len(values) != len(reference) or len(values) % (period * processes):
        raise ValueError(
            f"{len(values)} values and {len(reference)} of the reference cannot be paired in periods of {period}: pass "
            "as many of one as of the other, a multiple of the period for each process, at least one"
        )
    pairs = zip(_sums(values, period), _sums(reference, period), strict=True)
    ratios = [value / other for value, other in pairs]
    if processes > 1:
        own = len(ratios) // processes
        ratios = [statistics.median(ratios[start : start + own]) for start in range(0, len(ratios), own)]
    ratios.sort()
    k = rank(len(ratios))
    return Ratio(statistics.median(ratios), ratios[k - 1], ratios[-k], len(ratios))


def rank(n: int, coverage: float = COVERAGE) -> int:
    """The largest k whose interval from the k-th smallest to the k-th largest of n values covers the median.

    Args:
        n: Number of values, at least 1.
        coverage: The least probability.

    Returns:
        k, at least 1: with five values or fewer even the whole range covers less than 95 %, and is what one gets.
    """
    tail, k = 0.0, 0
    while k < n // 2:
        tail += math.comb(n, k) / 2**n
        if 2 * tail > 1 - coverage:
            break
        k += 1
    return max(k, 1)


def _sums(values: Sequence[float], period: int) -> list[float]:
    return [math.fsum(values[start : start + period]) for start in range(0, len(values), period)]
