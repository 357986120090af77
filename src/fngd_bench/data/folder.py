"""Where data sets lie: the folder of the option `--data`, or `$FNGD_DATA`, or one in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "FNGD_DATA"
"""The environment variable that names the folder."""


def data_folder(option: Path | None = None) -> Path:
    """The folder of all data sets; it need not exist.

    Args:
        option: What the user named, if anything.

    Returns:
        The option, else `$FNGD_DATA`, else `fngd` in the user's cache folder.
    """
    if option is not None:
        return option.expanduser()
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else _cache() / "fngd"


def _cache() -> Path:
    """The user's cache folder. A relative `$XDG_CACHE_HOME` is to be ignored, says its specification."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path.home() / ".cache"
