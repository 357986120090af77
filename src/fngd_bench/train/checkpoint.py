"""Checkpoints that are whole or not there: written beside, synced, renamed; the last two are kept.

They hold plain numbers and tensors, and are read with `weights_only=True`: loading one runs no code.
"""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import Any

import torch

from fngd_bench.errors import InputError

KEPT = 2
_PATTERN = "step-*.pt"


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint, then drop all but the newest two.

    Args:
        folder: Where checkpoints lie; it is made if need be.
        step: Steps that are over.
        state: What to keep.

    Returns:
        The file.

    Raises:
        InputError: If it cannot be written; the older checkpoints are as they were.
    """
    path = folder / f"step-{step:09d}.pt"
    temporary = folder / f".{path.name}.{os.getpid()}.tmp"
    buffer = io.BytesIO()
    torch.save(state, buffer)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(temporary, buffer)
        temporary.replace(path)
        _sync_folder(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(
            f"cannot write the checkpoint {path}: {error.strerror or error}. {_last(folder)} Make room or repair the "
            "folder, then run the same command with --resume"
        ) from error
    for old in files(folder)[:-KEPT]:
        old.unlink()
    return path


def latest(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that can be read; a damaged one is passed over with a warning.

    Args:
        folder: Where checkpoints lie.

    Returns:
        Its content; None if there is no checkpoint.

    Raises:
        InputError: If there are checkpoints and none can be read.
    """
    found = files(folder)
    for path in reversed(found):
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises whatever the damaged bytes lead to
            warnings.warn(f"fngd: {path} is damaged ({type(error).__name__}): the one before it is taken", stacklevel=2)
        else:
            return state
    if found:
        raise InputError(f"none of the {len(found)} checkpoints in {folder} can be read: start anew in another folder")
    return None


def files(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first.

    Args:
        folder: The folder.

    Returns:
        Their paths.
    """
    return sorted(folder.glob(_PATTERN))


def _write(path: Path, content: io.BytesIO) -> None:
    with path.open("wb") as file:
        file.write(content.getbuffer())
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _last(folder: Path) -> str:
    kept = files(folder) if folder.is_dir() else []
    return f"The last one, {kept[-1].name}, is intact." if kept else "There is none before it."
