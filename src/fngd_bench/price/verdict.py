"""Does FNGD's sharing step grow as SGD's does? From a record of `fngd bench scaling`, axis by axis. Without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fngd_bench.price.record import REFERENCE
from fngd_bench.price.scaling_record import ScalingRecord

SHARING = "fngd-share"
TOLERANCE = 0.05
"""Two exponents that differ by less are called the same: 3.5 % for each doubling."""
RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether FNGD's sharing step grows as SGD's does along one axis."""

    subject: str
    axis: str
    sizes: tuple[int, ...]
    """The larger half, where overheads weigh least."""
    difference: float
    """Exponent of the sharing step's time over that of SGD's."""
    low: float
    high: float

    @property
    def grows_alike(self) -> bool | None:
        """True if it grows no faster; None if the interval leaves it open."""
        if self.high <= TOLERANCE:
            return True
        return False if self.low > TOLERANCE else None

    @property
    def told(self) -> str:
        """The verdict in words."""
        return {True: "no faster than SGD's", False: "faster than SGD's", None: "left open"}[self.grows_alike]

    @property
    def sentence(self) -> str:
        """The verdict with its numbers."""
        return (
            f"{self.subject}, {self.axis} {self.sizes[0]} to {self.sizes[-1]}: difference of exponents "
            f"{self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}], {self.told}"
        )


def verdicts(record: ScalingRecord) -> tuple[Verdict, ...]:
    """Whether the sharing step grows as SGD's does, axis by axis.

    The ratio of both steps is taken round by round, so that what slows the machine down drops out. The slope of its
    logarithm over the logarithm of the size is the difference of the exponents; its 95 % interval comes from drawing
    rounds again.

    Args:
        record: The record.

    Returns:
        A verdict for each axis; none if the sharing step was not measured.
    """
    if SHARING not in record.settings.methods:
        return ()
    draw = np.random.default_rng(0)
    return tuple(_verdict(record, subject, axis, draw) for subject, axis in record.rows)


def _verdict(record: ScalingRecord, subject: str, axis: str, draw: np.random.Generator) -> Verdict:
    mine, sgd = record.of(subject, axis, SHARING), record.of(subject, axis, REFERENCE)
    half = min(len(mine), max(3, math.ceil(len(mine) / 2)))
    pairs = list(zip(mine, sgd, strict=True))[-half:]
    ratios = [np.array(row.seconds) / np.array(base.seconds) for row, base in pairs]
    sizes = tuple(row.point.size for row, _ in pairs)
    x = np.log(sizes) - np.mean(np.log(sizes))
    weights = x / np.sum(x**2)
    drawn = [np.median(draw.choice(each, (RESAMPLES, len(each))), axis=1) for each in ratios]
    slopes = weights @ np.log(np.stack(drawn))
    low, high = np.quantile(slopes, (0.025, 0.975))
    middle = float(weights @ np.log([np.median(each) for each in ratios]))
    return Verdict(
        subject=subject, axis=axis, sizes=sizes, difference=middle, low=min(middle, low), high=max(middle, high)
    )


def answer(found: Sequence[Verdict]) -> str:
    """All verdicts in one sentence.

    Args:
        found: The verdicts.

    Returns:
        The sentence; of what was not measured it says so.
    """
    if not found:
        return f"Whether FNGD's sharing step grows as SGD's does was not measured: name {SHARING} among the methods."
    told = {word: [v for v in found if v.grows_alike is word] for word in (True, False, None)}
    count = f"all {len(found)}" if len(told[True]) == len(found) else f"{len(told[True])} of {len(found)}"
    faster = f" It grows faster on {_named(told[False])}." if told[False] else ""
    left_open = f" The rounds leave it open on {_named(told[None])}." if told[None] else ""
    return f"FNGD's sharing step grows no faster than SGD's on {count} axes.{faster}{left_open}"


def _named(found: Sequence[Verdict]) -> str:
    return ", ".join(f"{verdict.subject} over {verdict.axis}" for verdict in found)
