"""How busy other processes kept the machine while the clock ran.

Torch's threads wait for each other at every operator. A second process on the same cores makes them wait for the
scheduler instead, and a step then takes ten or a hundred times as long: such numbers are worth nothing, and the record
has to show it. Linux counts the busy time of all cores in /proc/stat; what this process did not use, others did.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

_STAT = Path("/proc/stat")
_IDLE, _WAITING, _STEAL = 3, 4, 7


class Reading(NamedTuple):
    """Seconds so far."""

    wall: float
    busy: float
    """Of all cores."""
    own: float
    """Of this process, all its threads."""


def reading() -> Reading | None:
    """The counters now; None where the system does not keep them."""
    if not _STAT.exists():
        return None
    used = os.times()
    busy = busy_ticks(_STAT.read_text(encoding="ascii")) / os.sysconf("SC_CLK_TCK")
    return Reading(time.perf_counter(), busy, used.user + used.system)


def busy_ticks(stat: str) -> int:
    """Ticks in which a core worked, from the first line of /proc/stat; what guests use is in `user` already.

    Args:
        stat: The text of the file.

    Returns:
        Ticks.
    """
    ticks = [int(word) for word in stat.splitlines()[0].split()[1:]][: _STEAL + 1]
    return sum(count for index, count in enumerate(ticks) if index not in (_IDLE, _WAITING))


def other_cores(before: Reading | None, after: Reading | None) -> float | None:
    """Cores that other processes kept busy between two readings.

    Args:
        before: The first reading.
        after: The second one.

    Returns:
        A number of cores, 0 on a quiet machine; None where it is not known.
    """
    if before is None or after is None:
        return None
    others = (after.busy - before.busy) - (after.own - before.own)
    return max(0.0, others / (after.wall - before.wall))
