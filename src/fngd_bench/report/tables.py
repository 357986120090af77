"""The page's tables as plain text, row by row; the template draws them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fngd_bench.price.prices import prices
from fngd_bench.price.record import Record, StepRecord
from fngd_bench.provenance import Provenance
from fngd_bench.report import cells
from fngd_bench.report.numbers import DASH, FEW, INFINITE, quantity, unit
from fngd_bench.report.summary import REFERENCE, Group, MethodSummary, final_metric, state
from fngd_bench.runs.events import Setting
from fngd_bench.runs.reader import Run


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table and the words below it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def results(group: Group) -> Table:
    """What each method reached and what it cost.

    Args:
        group: The group.

    Returns:
        The table.
    """
    columns: dict[str, Callable[[MethodSummary], str]] = {
        "method": lambda summary: summary.method,
        f"final {group.metric}": lambda summary: cells.final(group, summary),
        f"best {group.metric}": lambda summary: DASH if summary.best is None else summary.best.text(unit(group.metric)),
        "seconds an epoch": lambda summary: _optional(summary.epoch_seconds, " s", 2),
        "step, median · mean": _step,
        f"time per step over {REFERENCE}’s": cells.step_ratio,
        "peak memory": cells.memory,
    }
    return Table(
        title="Results",
        head=tuple(columns),
        rows=tuple(tuple(cell(summary) for cell in columns.values()) for summary in group.methods),
        notes=cells.NOTES,
    )


def time_to_target(group: Group) -> Table | None:
    """How long each method took to the target.

    Args:
        group: The group.

    Returns:
        The table; None where there is no target.
    """
    if group.target is None:
        return None
    goal = f"{unit(group.metric).text(group.target)} {group.metric}"
    return Table(
        title="Time to target",
        head=("method", "reached", "epochs, median", "seconds, median", "seconds of each run, by seed"),
        rows=tuple(map(_target_row, group.methods)),
        notes=(
            f"The target is {goal} on the test set, looked at after each epoch; seconds are timed ones. A run that "
            "missed it counts as ∞, also in the median.",
        ),
    )


def step_prices(record: StepRecord) -> Table:
    """The prices of a record of `fngd bench step`.

    Args:
        record: The record.

    Returns:
        The table.
    """
    wanted, origin = record.settings, record.provenance
    disturbed = record.surroundings.disturbance(record.settings.subject)
    return Table(
        title=f"{wanted.subject}, batch {wanted.batch}, {record.parameters:,} parameters",
        head=("method", "median step", "mean step", "time over sgd’s", "peak memory", "memory over sgd’s"),
        rows=tuple(
            (
                price.method,
                f"{price.median_ms:.1f} ms",
                f"{price.mean_ms:.1f} ms",
                price.time.text(),
                DASH if price.peak_mib is None else f"{price.peak_mib:,.0f} MiB",
                DASH if price.memory is None else price.memory.text(),
            )
            for price in prices(record)
        ),
        notes=(
            f"Interleaved in one process, {wanted.steps} steps each, after {wanted.warmup} of warm-up: median of the "
            f"paired ratios [95 % interval]. Memory: median [range] of {wanted.memory_runs} processes each.",
            f"{_machine(origin)}; {_commit(origin)}; {origin.date}.",
            *([] if disturbed is None else [disturbed]),
        ),
    )


def places(runs: Sequence[Run], records: Sequence[Record] = ()) -> Table:
    """Where the numbers come from, a row for each different place.

    Args:
        runs: The runs.
        records: Price records.

    Returns:
        The table.
    """
    resumed = [event.provenance for run in runs for event in run.resumed]
    origins = [*(run.provenance for run in runs), *resumed, *(record.provenance for record in records)]
    found: dict[tuple[str, ...], list[str]] = {}
    for origin in origins:
        found.setdefault(_place(origin), []).append(origin.date)
    return Table(
        title="Where it ran",
        head=("commit", "machine", "system", "versions", "starts", "started (UTC)"),
        rows=tuple((*place, str(len(dates)), _dates(dates)) for place, dates in found.items()),
    )


def all_runs(group: Group) -> Table:
    """Every run with its settings and the command that makes it again.

    Args:
        group: The group.

    Returns:
        The table.
    """
    return Table(
        title=f"{group.title}: every run",
        head=("method", "seed", "state", "epochs", "steps", group.metric, "settings", "commit", "again with", "record"),
        rows=tuple(_run_row(group, run) for run in group.runs),
        notes=(
            "Settings are those that the run was given, defaults resolved; the command names them all, so it does not "
            "depend on what the defaults are later.",
        ),
    )


def command(run: Run) -> str:
    """What to type to make a run again.

    Args:
        run: The run.

    Returns:
        A line for the shell.
    """
    wanted = run.settings
    numbers = {"seed": wanted.seed, "epochs": wanted.epochs, "batch": wanted.batch}
    options = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    given = [word for name, value in wanted.hyperparameters.items() for word in ("--set", f"{name}={value}")]
    return shlex.join(["fngd", "train", wanted.workload, wanted.method, "--scale", wanted.scale, *options, *given])


def _step(summary: MethodSummary) -> str:
    return DASH if summary.step is None else f"{summary.step.median_ms:.1f} · {summary.step.mean_ms:.1f} ms"


def _target_row(summary: MethodSummary) -> tuple[str, ...]:
    epochs, seconds = summary.epochs_to_target, summary.seconds_to_target
    assert epochs is not None
    assert seconds is not None
    each = " · ".join(quantity(value) for value in seconds.values)
    reached = f"{seconds.reached} of {len(seconds.values)}{'' if len(seconds.values) >= FEW else f' < {FEW}'}"
    return summary.method, reached, f"{epochs.median:g}".replace("inf", INFINITE), quantity(seconds.median, " s"), each


def _run_row(group: Group, run: Run) -> tuple[str, ...]:
    wanted, metric = run.settings, final_metric(run)
    details = {**wanted.hyperparameters, "batch": wanted.batch, "schedule": wanted.schedule}
    skipped = f", {len(run.skipped)} steps skipped" if run.skipped else ""
    resumed = f", resumed {len(run.resumed)} ×" if run.resumed else ""
    return (
        wanted.method,
        str(wanted.seed),
        f"{state(run)}{skipped}{resumed}",
        f"{len(run.epochs)} of {wanted.epochs}",
        f"{run.epochs[-1].step if run.epochs else 0:,}",
        DASH if metric is None else unit(group.metric).text(metric),
        ", ".join(f"{name} {_setting(value)}" for name, value in details.items()),
        _commit(run.provenance),
        command(run),
        str(run.path),
    )


def _place(origin: Provenance) -> tuple[str, ...]:
    versions = f"torch {origin.torch}, Python {origin.python}, fngd {origin.fngd}"
    return _commit(origin), _machine(origin), origin.system, versions


def _machine(origin: Provenance) -> str:
    return f"{origin.cpu}, {origin.cores} cores, {origin.threads} threads"


def _commit(origin: Provenance) -> str:
    if origin.commit is None:
        return "no commit"
    return f"{origin.commit[:12]}{' with uncommitted changes' if origin.dirty else ''}"


def _dates(dates: Sequence[str]) -> str:
    first, last = (date[:16].replace("T", " ") for date in (min(dates), max(dates)))
    return first if first == last else f"{first} to {last}"


def _optional(value: float | None, suffix: str, digits: int) -> str:
    return DASH if value is None else quantity(value, suffix, digits)


def _setting(value: Setting) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
