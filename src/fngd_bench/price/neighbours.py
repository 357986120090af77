"""How busy others kept the machine while the clock ran, and rounds that they left alone.

Torch's threads wait for each other at every operator. A second process on the same cores makes them wait for the
scheduler instead, and a step then takes ten or a hundred times as long: such numbers are worth nothing, and the record
has to show it. Linux counts the busy time of all cores in /proc/stat; what this process did not use, others did.

The host of a virtual machine takes its cores away whenever it has others to serve; Linux counts that too. A block of
rounds from which the host took too much is run again. If there is no end to it, those from which it took least are
kept: what is kept depends on what was taken alone, never on what was measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from fngd_bench.price.surroundings import CALM, Surroundings

PATIENCE = 2
"""Blocks that are run at the most for each that is wanted."""
_STAT = Path("/proc/stat")
_IDLE, _WAITING, _STOLEN = 3, 4, 7
T = TypeVar("T")


class Reading(NamedTuple):
    """Seconds so far."""

    wall: float
    busy: float
    """Of all cores, in this machine's own processes."""
    own: float
    """Of this process, all its threads."""
    stolen: float
    """Of all cores, by the host."""


def reading() -> Reading | None:
    """The counters now; None where the system does not keep them."""
    if not _STAT.exists():
        return None
    used, (busy, stolen) = os.times(), ticks(_STAT.read_text(encoding="ascii"))
    second = os.sysconf("SC_CLK_TCK")
    return Reading(time.perf_counter(), busy / second, used.user + used.system, stolen / second)


def ticks(stat: str) -> tuple[int, int]:
    """Ticks in which a core worked, and ticks that the host took, from the first line of /proc/stat.

    Args:
        stat: The text of the file; what guests use is in `user` already.

    Returns:
        Both numbers.
    """
    counts = [int(word) for word in stat.splitlines()[0].split()[1:]][: _STOLEN + 1]
    return sum(count for index, count in enumerate(counts[:_STOLEN]) if index not in (_IDLE, _WAITING)), counts[_STOLEN]


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


class Watch:
    """Counts what others take from now on, and has rounds run again that the host did not leave alone."""

    def __init__(self, look: Callable[[], Reading | None] = reading, cores: int | None = None) -> None:
        """Start to count.

        Args:
            look: Reads the counters.
            cores: Of this machine.
        """
        self._look, self._cores = look, cores or os.cpu_count() or 1
        self._start = look()
        self._stolen = self._time = 0.0
        self._dropped = 0

    def calm(self, block: Callable[[int], T], count: int, rounds: int = 1) -> list[T]:
        """Run a block of rounds until the host has left enough of them alone.

        Args:
            block: Runs it once, told how often it was run before.
            count: Blocks that are wanted.
            rounds: Rounds of a block.

        Returns:
            What `count` of the blocks returned, in the order they were run in.
        """
        runs = list[tuple[float, float, T]]()
        while len(runs) < PATIENCE * count and sum(stolen <= CALM * time for stolen, time, _ in runs) < count:
            runs.append(self._run(partial(block, len(runs))))
        least = sorted(range(len(runs)), key=lambda number: runs[number][0] / runs[number][1])[:count]
        self._dropped += rounds * (len(runs) - count)
        self._stolen += sum(runs[number][0] for number in least)
        self._time += sum(runs[number][1] for number in least)
        return [runs[number][2] for number in sorted(least)]

    def _run(self, block: Callable[[], T]) -> tuple[float, float, T]:
        """Seconds of the cores that the host took, seconds that they had with these, and what the block returned."""
        before = self._look()
        result = block()
        after = self._look()
        if before is None or after is None:
            return 0.0, 1.0, result
        return after.stolen - before.stolen, self._cores * (after.wall - before.wall), result

    def seen(self) -> Surroundings:
        """What others have taken so far."""
        known = self._start is not None and self._time > 0
        return Surroundings(
            other_cores=other_cores(self._start, self._look()),
            stolen=self._stolen / self._time if known else None,
            dropped=self._dropped,
        )
