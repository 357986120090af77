"""What runs cost: seconds of an epoch, milliseconds of a step, and where they go.

A median step hides what comes back every few steps, so the mean over the whole run stands beside it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fngd_bench.runs.events import Epoch
from fngd_bench.runs.reader import Run


@dataclass(frozen=True, kw_only=True)
class EpochCost:
    """What one epoch of one run took."""

    epoch: Epoch
    seconds: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Milliseconds of a mean step by section."""

    all_epochs: dict[str, float]
    first_epoch: dict[str, float]
    later_epochs: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """What a step of a method's runs took, and the same in units of the reference's; not interleaved."""

    median_ms: float
    mean_ms: float
    median_ratio: float | None
    mean_ratio: float | None


def costs(run: Run) -> list[EpochCost]:
    """What each epoch of a run took.

    Args:
        run: The run.

    Returns:
        The costs, in order.
    """
    marks = [(0.0, 0), *((epoch.seconds, epoch.step) for epoch in run.epochs)]
    return [
        EpochCost(epoch=epoch, seconds=now[0] - before[0], steps=now[1] - before[1])
        for epoch, (before, now) in zip(run.epochs, pairwise(marks), strict=True)
    ]


def step_time(runs: Sequence[Run], reference: StepTime | None) -> StepTime | None:
    """What a step of some runs took.

    Args:
        runs: Runs of one method.
        reference: The reference's step, if it was run.

    Returns:
        Medians over the runs; None if no step was timed.
    """
    timed = [list(run.step_seconds.values()) for run in runs if run.step_seconds]
    if not timed:
        return None
    # Medians over runs, so that one run on a busy machine does not decide.
    median = 1e3 * statistics.median(map(statistics.median, timed))
    mean = 1e3 * statistics.median(map(statistics.fmean, timed))
    return StepTime(
        median_ms=median,
        mean_ms=mean,
        median_ratio=median / reference.median_ms if reference else None,
        mean_ratio=mean / reference.mean_ms if reference else None,
    )


def breakdown(every: Sequence[EpochCost]) -> Breakdown:
    """Where the time of a step goes.

    Args:
        every: All epochs of all runs of a method.

    Returns:
        Milliseconds by section.
    """
    return Breakdown(
        all_epochs=_sections(every),
        first_epoch=_sections([cost for cost in every if cost.epoch.epoch == 1]),
        later_epochs=_sections([cost for cost in every if cost.epoch.epoch > 1]),
    )


def _sections(some: Sequence[EpochCost]) -> dict[str, float]:
    """Milliseconds of a mean step by section, over some epochs."""
    steps = sum(cost.steps for cost in some)
    totals: dict[str, float] = defaultdict(float)
    for cost in some:
        for name, seconds in cost.epoch.sections.items():
            totals[name] += seconds
    return {name: 1e3 * seconds / steps for name, seconds in totals.items()} if steps else {}
