"""What the terminal shows: progress while work goes on, and tables of results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fngd_bench.price.prices import Price, disturbance
from fngd_bench.price.record import StepRecord

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
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
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


def print_steps(record: StepRecord, rows: Sequence[Price]) -> None:
    """Print the prices of one record.

    Args:
        record: The record.
        rows: Its prices.
    """
    wanted = record.settings
    size = "" if wanted.image_size is None else f", images {wanted.image_size}×{wanted.image_size}"
    origin = record.provenance
    table = Table(
        title=f"{wanted.model}, {record.parameters:,} parameters, batch {wanted.batch}{size}, {wanted.steps} steps",
        caption=f"ratios to sgd, paired, with the median's 95 % interval; {origin.cpu}, {origin.threads} threads, "
        f"torch {origin.torch}",
    )
    table.add_column("method")
    for title in ("median ms", "mean ms", "time ratio", "peak MiB", "memory ratio"):
        table.add_column(title, justify="right", no_wrap=True)
    for price in rows:
        numbers = (f"{price.median_ms:.1f}", f"{price.mean_ms:.1f}", price.time.text(), f"{price.peak_mib:.0f}")
        table.add_row(price.method, *numbers, price.memory.text())
    show(table)
    if (sentence := disturbance(record)) is not None:
        Console().print(sentence, markup=False, highlight=False)


def show(table: Table) -> None:
    """Print a table to the standard output, never narrower than its content.

    Args:
        table: The table.
    """
    content = Console(width=1000).measure(table).maximum
    Console(width=max(content, Console().width)).print(table)
