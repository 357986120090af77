"""What the terminal shows: progress while work goes on, and tables of results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Progressbar
from rich.table import Column, Table

from fngd_bench.price.prices import Price
from fngd_bench.price.record import StepRecord
from fngd_bench.runs.best import Best
from fngd_bench.runs.progress import Progress
from fngd_bench.runs.reader import Run

QUIET_SECONDS = 5.0
"""Plain progress lines keep this distance."""


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show how far the work is: a bar on a terminal, a line now and then elsewhere. Both go to the error stream.

    Args:
        total: Pieces of work.

    Yields:
        A function to call with the name of each piece that is done.
    """
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _lines(console, total)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progressbar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=total)
        # Redrawn here, between timed sections, and by no thread of its own.
        yield lambda name: bar.update(task, advance=1, description=name, refresh=True)


def _lines(console: Console, total: int) -> Callable[[str], None]:
    done, said = 0, float("-inf")

    def advance(name: str) -> None:
        nonlocal done, said
        done += 1
        if done == total or time.monotonic() - said >= QUIET_SECONDS:
            said = time.monotonic()
            console.print(f"{done}/{total} {name}", highlight=False, markup=False)

    return advance


@contextmanager
def training(labels: Sequence[str]) -> Iterator[Callable[[int, Progress], None]]:
    """Show how far one or several runs are: a bar on a terminal, a line now and then elsewhere.

    Args:
        labels: A name for each run, in their order.

    Yields:
        A function to call with the number of a run, from 0, and its progress.
    """
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _training_lines(console, labels)
        return
    columns = (
        BarColumn(bar_width=16),
        TaskProgressColumn(table_column=Column(no_wrap=True, min_width=4)),
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
    )
    with Progressbar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=len(labels))

        def show_progress(number: int, at: Progress) -> None:
            text = f"{_label(labels, number)}{_told(at)}"
            bar.update(task, completed=number + at.step / at.total, description=text, refresh=True)

        yield show_progress


def _training_lines(console: Console, labels: Sequence[str]) -> Callable[[int, Progress], None]:
    said, began = float("-inf"), time.monotonic()

    def say(number: int, at: Progress) -> None:
        nonlocal said
        if at.step == at.total or time.monotonic() - said >= QUIET_SECONDS:
            said = time.monotonic()
            done = (number + at.step / at.total) / len(labels)
            left = (said - began) * (1 - done) / done
            text = f"{_label(labels, number)}{_told(at)}, {left:.0f} s left"
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    return say


def _label(labels: Sequence[str], number: int) -> str:
    return f"{labels[number]} ({number + 1}/{len(labels)}): " if len(labels) > 1 else f"{labels[number]}: "


def _told(at: Progress) -> str:
    """Epoch, loss, metric and speed."""
    judged = "" if at.metric is None else f", {metric_text(at.metric_name, at.metric)}"
    return f"epoch {at.epoch:.2f}, loss {at.loss:.4f}{judged}, {at.samples_per_second:,.0f} samples/s"


def metric_text(name: str, value: float) -> str:
    """A metric with its name and unit.

    Args:
        name: "accuracy", a share, or "BLEU".
        value: Its value.

    Returns:
        Such as "accuracy 92.5 %".
    """
    return f"accuracy {100 * value:.2f} %" if name == "accuracy" else f"{name} {value:.1f}"


def run_summary(run: Run) -> str:
    """One run in one line.

    Args:
        run: The run.

    Returns:
        How it ended, how good it was, how long it took and where its record is.
    """
    end = "under way" if run.end is None else run.end.reason
    judged = metric_text(run.settings.metric, run.epochs[-1].metric) if run.epochs else "not tested yet"
    seconds = run.epochs[-1].seconds if run.epochs else 0.0
    return f"{end}: {judged} after {len(run.epochs)} epochs, {seconds:.1f} s; {run.path}"


def print_steps(record: StepRecord, rows: Sequence[Price]) -> None:
    """Print the prices of one record.

    Args:
        record: The record.
        rows: Its prices.
    """
    wanted = record.settings
    size = "" if wanted.image_size is None else f", images {wanted.image_size}×{wanted.image_size}"
    origin = record.provenance
    spread = f" in {wanted.processes} processes" if wanted.processes > 1 else ""
    table = Table(
        title=f"{wanted.subject}, {record.parameters:,} parameters, batch {wanted.batch}{size}, {wanted.steps} steps"
        f"{spread}",
        caption=f"ratios to sgd, paired, with the median's 95 % interval; {origin.cpu}, {origin.threads} threads, "
        f"torch {origin.torch}",
    )
    table.add_column("method")
    for title in ("median ms", "mean ms", "time ratio", "peak MiB", "memory ratio"):
        table.add_column(title, justify="right", no_wrap=True)
    for price in rows:
        peak = "–" if price.peak_mib is None else f"{price.peak_mib:.0f}"
        memory = "–" if price.memory is None else price.memory.text()
        times = (f"{price.median_ms:.1f}", f"{price.mean_ms:.1f}", price.time.text())
        table.add_row(price.method, *times, peak, memory)
    show(table)
    if (sentence := record.surroundings.disturbance(record.settings.subject)) is not None:
        Console().print(sentence, markup=False, highlight=False)


def tuned(found: Sequence[Best], workload: str) -> Table:
    """What tuning found, a row for each method.

    Args:
        found: The best trials.
        workload: What was tuned on.

    Returns:
        The table.
    """
    table = Table(title=f"best of the trials on {workload}")
    for title in ("method", "trials", "metric", "hyperparameters", "record"):
        table.add_column(title, justify="right" if title in {"trials", "metric"} else "left")
    for best in found:
        settings = ", ".join(f"{name}={value:.3g}" for name, value in best.hyperparameters.items())
        table.add_row(best.method, str(best.trials), f"{best.metric:.4g}", settings, str(best.record))
    return table


def show(table: Table) -> None:
    """Print a table to the standard output, never narrower than its content.

    Args:
        table: The table.
    """
    content = Console(width=1000).measure(table).maximum
    Console(width=max(content, Console().width)).print(table)
