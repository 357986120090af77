"""From runs to the numbers of a table: one group for each workload and scale, one summary for each method.

What counts, and how:
- A run that finished or diverged is over; it counts with its last evaluation. A run that was stopped, or is under way,
  is not over: it has no final metric yet, and the table says so.
- A target that was not reached is ∞ and is never dropped. A run that is not over and has not reached it counts as ∞.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fngd_bench.price.prices import Price
from fngd_bench.price.record import StepRecord
from fngd_bench.report import flags
from fngd_bench.report.costs import Breakdown, StepTime, breakdown, costs, step_time
from fngd_bench.report.matching import match, price_of
from fngd_bench.report.numbers import Range, Reach, Spread, counted, spread, value_range
from fngd_bench.runs.reader import Run

REFERENCE = "sgd-m"
"""Ratios are to this method."""
UNDER_WAY = "unfinished"
"""State of a run whose record has no end: it is under way, or was killed."""
OVER = ("finished", "diverged")


@dataclass(frozen=True, kw_only=True)
class MethodSummary:
    """All runs of one method in a group."""

    method: str
    runs: tuple[Run, ...]
    """In order of their seeds."""
    states: dict[str, int]
    """How many runs finished, diverged, were stopped or are unfinished."""
    final: Spread | None
    best: Spread | None
    epochs_to_target: Reach | None
    """None where the workload has no target."""
    seconds_to_target: Reach | None
    epoch_seconds: float | None
    """Median over all epochs."""
    step: StepTime | None
    peak_mib: Range | None
    breakdown: Breakdown
    price: Price | None
    """The step's price measured interleaved, and its memory in a process of its own, if there is a record of it."""
    flags: tuple[str, ...]
    """What differs between its runs though it should not."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """All runs of one workload at one scale, judged by one metric."""

    workload: str
    scale: str
    metric: str
    target: float | None
    methods: tuple[MethodSummary, ...]
    record: StepRecord | None
    """The price record of the same model and batch."""
    flags: tuple[str, ...]

    @property
    def title(self) -> str:
        """What it is called."""
        return f"{self.workload} · {self.scale}"

    @property
    def runs(self) -> tuple[Run, ...]:
        """All of its runs."""
        return tuple(run for summary in self.methods for run in summary.runs)

    @property
    def counts(self) -> str:
        """How many runs stand behind each method, in words."""
        numbers = {summary.method: len(summary.runs) for summary in self.methods}
        if len(set(numbers.values())) == 1:
            return f"Runs of each method: {counted(len(self.methods[0].runs))}."
        return "Runs: " + ", ".join(f"{name} {count}" for name, count in numbers.items()) + "."

    def of(self, method: str) -> MethodSummary | None:
        """The summary of one method.

        Args:
            method: Its name.

        Returns:
            The summary; None if no run of it is here.
        """
        return next((summary for summary in self.methods if summary.method == method), None)


def groups(runs: Iterable[Run], prices: Sequence[StepRecord] = ()) -> tuple[Group, ...]:
    """Sort runs into groups, in order of their names.

    Args:
        runs: The runs.
        prices: Price records; one that fits a group replaces what its runs say of time per step and memory.

    Returns:
        The groups.
    """
    sorted_runs: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        sorted_runs[run.settings.workload, run.settings.scale, run.settings.metric].append(run)
    return tuple(_group(sorted_runs[key], prices) for key in sorted(sorted_runs))


def order(method: str) -> tuple[int, str]:
    """Where a method stands in tables and legends: the reference, then this project's methods, then the others.

    Args:
        method: Its name.

    Returns:
        A key to sort by.
    """
    family = method == "ngd" or method.startswith("fngd")
    return (0 if method == REFERENCE else 1 if family else 2), method


def state(run: Run) -> str:
    """How a run ended.

    Args:
        run: The run.

    Returns:
        "finished", "diverged", "stopped" or "unfinished".
    """
    return UNDER_WAY if run.end is None else run.end.reason


def final_metric(run: Run) -> float | None:
    """The metric of a run that is over.

    Args:
        run: The run.

    Returns:
        That of its last evaluation; None if it is not over or was never evaluated.
    """
    return run.epochs[-1].metric if run.epochs and state(run) in OVER else None


def _group(runs: Sequence[Run], prices: Sequence[StepRecord]) -> Group:
    newest = max(runs, key=lambda run: run.provenance.date)
    by_method: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (order(run.settings.method), run.settings.seed, run.provenance.date)):
        by_method[run.settings.method].append(run)
    record = match(runs, prices)
    target = newest.settings.target
    reference = step_time(by_method.get(REFERENCE, []), None)
    return Group(
        workload=newest.settings.workload,
        scale=newest.settings.scale,
        metric=newest.settings.metric,
        target=target,
        methods=tuple(_method(name, own, target, reference, record) for name, own in by_method.items()),
        record=record,
        flags=flags.of_group(by_method, target),
    )


def _method(
    name: str, runs: Sequence[Run], target: float | None, reference: StepTime | None, record: StepRecord | None
) -> MethodSummary:
    over = [run for run in runs if final_metric(run) is not None]
    every = [cost for run in runs for cost in costs(run)]
    return MethodSummary(
        method=name,
        runs=tuple(runs),
        states=dict(Counter(map(state, runs))),
        final=spread([run.epochs[-1].metric for run in over]),
        best=spread([max(epoch.metric for epoch in run.epochs) for run in over]),
        epochs_to_target=_reach(runs, target, "epoch"),
        seconds_to_target=_reach(runs, target, "seconds"),
        epoch_seconds=statistics.median(cost.seconds for cost in every) if every else None,
        step=step_time(runs, reference),
        peak_mib=value_range([run.end.peak_bytes / 2**20 for run in runs if run.end and run.end.peak_bytes > 0]),
        breakdown=breakdown(every),
        price=price_of(record, name),
        flags=flags.of_method(runs),
    )


def _reach(runs: Sequence[Run], target: float | None, field: str) -> Reach | None:
    if target is None:
        return None
    found = (run.reached(target) for run in runs)
    return Reach(tuple(math.inf if epoch is None else float(getattr(epoch, field)) for epoch in found))
