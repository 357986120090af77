"""`fngd data fetch` and `fngd data verify`: get the files of a data set, or read every byte of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fngd_bench.data.progress import Display
from fngd_bench.data.sets import SETS, find, find_present
from fngd_bench.errors import InputError


def fetch(name: str, folder: Path, display: Display) -> str:
    """Get a data set, unless it is there and whole.

    Args:
        name: One of `SETS`.
        folder: The data folder; it is made if it is not there.
        display: Shows the bytes on their way.

    Returns:
        What was done, in one line.

    Raises:
        InputError: If it cannot be done; the message says what the user can do.
    """
    entry = find(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder {folder}: {error.strerror or error}; choose another with --data"
        ) from error
    return f"{name} {entry.fetch(folder, display)}"


def verify(names: Sequence[str], folder: Path, display: Display, say: Callable[[str], None]) -> None:
    """Check data sets, all of them before anything is refused.

    Args:
        names: Of `SETS`; none stands for all that are there.
        folder: The data folder.
        display: Shows how many files were read.
        say: Given a line for each data set that is right.

    Raises:
        InputError: If a named one is missing, or any is corrupt.
    """
    wrong = []
    for name in names or SETS:
        if not names and SETS[name].absent(folder) is not None:
            say(f"{name}: missing")
            continue
        try:
            say(f"{name}: {find_present(name, folder).verify(folder, display)}")
        except InputError as error:
            wrong.append(str(error))
    if wrong:
        raise InputError("; ".join(wrong))
