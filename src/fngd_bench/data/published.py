"""Data sets that are a list of published files: is each there, and is it whole?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fngd_bench.data import checksums
from fngd_bench.data.checksums import File
from fngd_bench.data.dataset import command
from fngd_bench.data.progress import Display


def first_absent(folder: Path, files: Sequence[File]) -> Path | None:
    """The first file that is not there.

    Args:
        folder: The data folder.
        files: All of them.

    Returns:
        Its path; None if all are there.
    """
    paths = (folder / file.path for file in files)
    return next((path for path in paths if not path.is_file()), None)


def whole(folder: Path, files: Sequence[File]) -> bool:
    """Whether every file is there, byte for byte."""
    return first_absent(folder, files) is None and all(
        checksums.digest(folder / file.path, file.checksum.algorithm) == file.checksum.value for file in files
    )


def verify(folder: Path, files: Sequence[File], name: str, display: Display) -> str:
    """Hold every file against its checksum.

    Args:
        folder: The data folder.
        files: All of them.
        name: Of the data set.
        display: Shows how many files were read.

    Returns:
        What was found right.

    Raises:
        InputError: With both checksums, if a file is corrupt.
    """
    with display(name) as watch:
        for done, file in enumerate(files, start=1):
            path = folder / file.path
            found = checksums.digest(path, file.checksum.algorithm)
            checksums.compare(str(path), found, file.checksum, anew(name, folder))
            watch(done, len(files))
    return f"{len(files)} files, {files[0].checksum.algorithm} as published"


def anew(name: str, folder: Path) -> str:
    """The way out for a corrupt file."""
    return f"get it anew with `{command(name, folder)}`"
