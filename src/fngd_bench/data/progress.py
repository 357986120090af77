"""How far a transfer or a check is: a bar on a terminal, a line now and then elsewhere. Both go to the error stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

Watch = Callable[[int, int | None], None]
"""Told how much is done, and of how much if that is known."""
Display = Callable[[str], AbstractContextManager[Watch]]
"""Shows the progress of something that has a name."""
QUIET_SECONDS = 5.0
"""Plain lines keep this distance."""


@contextmanager
def transfer(name: str) -> Iterator[Watch]:
    """Show bytes on their way.

    Args:
        name: Of the file.

    Yields:
        To be told of the bytes that have arrived, and of all.
    """
    with _shown(name, (DownloadColumn(), TransferSpeedColumn()), decimal) as watch:
        yield watch


@contextmanager
def counting(name: str) -> Iterator[Watch]:
    """Show files being read.

    Args:
        name: Of the data set.

    Yields:
        To be told of the files that were read, and of all.
    """
    with _shown(name, (MofNCompleteColumn(),), "{:,}".format) as watch:
        yield watch


@contextmanager
def _shown(name: str, columns: tuple[ProgressColumn, ...], text: Callable[[int], str]) -> Iterator[Watch]:
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _lines(console, name, text)
        return
    every = (TextColumn("{task.description}", markup=False), BarColumn(), *columns, TimeRemainingColumn())
    with Progress(*every, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(console: Console, name: str, text: Callable[[int], str]) -> Watch:
    said = float("-inf")

    def watch(done: int, total: int | None) -> None:
        nonlocal said
        if done == total or time.monotonic() - said >= QUIET_SECONDS:
            said = time.monotonic()
            whole = "" if total is None else f" of {text(total)}"
            console.print(f"{name}: {text(done)}{whole}", highlight=False, markup=False, soft_wrap=True)

    return watch
