"""Files that are either the old one or the whole new one, never half of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fngd_bench.errors import InputError


def check_writable(path: Path) -> None:
    """Refuse a path that could not be written, before any work is done for it.

    Args:
        path: The file to be written later.

    Raises:
        InputError: If its folder is missing or closed, or the path is a folder.
    """
    folder = path.resolve().parent
    if not folder.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {folder}; make it first, or choose another file")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {path}: the folder {folder} is not yours to write in; choose another file")


def read_text(path: Path) -> str:
    """The text of a file the user named.

    Args:
        path: The file.

    Returns:
        Its text.

    Raises:
        InputError: If it cannot be read as text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}; check the path") from error


def write_text(path: Path, text: str) -> None:
    """Replace a file in one go: a temporary file beside it, on disk, then renamed. Its permissions stay.

    Args:
        path: The file; a link is followed.
        text: Its new content.
    """
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
