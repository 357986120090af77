"""Memory of this process: what is in RAM now, and the most that ever was."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    """Memory of this process that is in RAM now; its peak so far where the system does not say."""
    return _status("VmRSS") if _STATUS.exists() else peak_resident_bytes()


def peak_resident_bytes() -> int:
    """The most memory of this process that was in RAM at any time."""
    if _STATUS.exists():
        return _status("VmHWM")
    import resource  # not on every system

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def forget_peak() -> None:
    """Let the peak start again from what is held now, where the system can do that (Linux)."""
    with suppress(OSError):  # a system without this file, or a container that closes it, keeps the older peak
        _CLEAR.write_text("5", encoding="ascii")


def _status(field: str) -> int:
    """A field of Linux's process status, which counts in KiB."""
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
