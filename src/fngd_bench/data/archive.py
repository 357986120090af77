"""A folder out of a tar file: extracted aside with the `data` filter, checked, then put in place in one go."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

from fngd_bench.errors import InputError


def unpack(archive: Path, root: str, check: Callable[[Path], object]) -> None:
    """Put a folder of an archive beside the archive, and remove the archive.

    Args:
        archive: The tar file, compressed or not.
        root: The folder inside that is wanted; one of that name beside the archive is replaced.
        check: Given a folder that holds `root`, raises if a file in it is missing or corrupt.

    Raises:
        InputError: If the archive is refused, or the disk is full. Nothing is left half done.
    """
    target = archive.parent / root
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=f".{root}.") as scratch:
            _extract(archive, Path(scratch))
            check(Path(scratch))
            if target.exists():
                shutil.rmtree(target)
            (Path(scratch) / root).rename(target)
        archive.unlink()
    except OSError as error:
        raise InputError(
            f"cannot unpack {archive}: {error.strerror or error}; make room or choose another folder with --data"
        ) from error


def _extract(archive: Path, folder: Path) -> None:
    """Extract with the filter that refuses links, devices and paths that lead out of the folder."""
    if not hasattr(tarfile, "data_filter"):  # the documented way to ask; Python before 3.11.4
        raise InputError(f"cannot unpack {archive} safely with this Python; use 3.11.4 or later")
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        archive.unlink()
        raise InputError(f"{archive} was refused and removed: {error}; fetch it again") from error
