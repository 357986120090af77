"""The rules of the clock: what a timed section is.

Seconds come from `time.perf_counter`. An accelerator is waited for at both borders of a section, so that a section pays
for the work it started and for no other. Python's garbage collector is off inside and run outside, so that no section
pays for another's garbage.

`seconds` times one piece of work. `section` marks a piece of a training step by name, wherever it is done; a
`Stopwatch` that is running adds up the seconds of each name, and without one a mark costs next to nothing.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch


def synchronise() -> None:
    """Wait until the accelerator, if there is one, has done all that was asked of it."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection inside; afterwards it is on if it was on before.

    Yields:
        Nothing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def seconds(section: Callable[[], object]) -> float:
    """How long a section takes.

    Args:
        section: The timed work; what it returns is dropped after the clock has stopped.

    Returns:
        Seconds between the two borders.
    """
    with collection_paused():
        synchronise()
        start = time.perf_counter()
        result = section()
        synchronise()
        stop = time.perf_counter()
        del result
    return stop - start


class Stopwatch:
    """Seconds by section. A section inside another one counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []
        """For each section under way, the seconds that sections inside it have taken."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sections marked inside are added up here.

        Yields:
            Nothing.
        """
        token = _running.set(self)
        try:
            yield
        finally:
            _running.reset(token)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Time one section.

        Args:
            name: Under which its seconds are added up.

        Yields:
            Nothing.
        """
        self._inner.append(0.0)
        synchronise()
        start = time.perf_counter()
        try:
            yield
        finally:
            synchronise()
            elapsed = time.perf_counter() - start
            inner = self._inner.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed - inner
            if self._inner:
                self._inner[-1] += elapsed

    @property
    def total(self) -> float:
        """Seconds of all sections."""
        return sum(self.seconds.values())


_running: ContextVar[Stopwatch | None] = ContextVar("running", default=None)


@contextmanager
def section(name: str) -> Iterator[None]:
    """Mark a piece of a step; a running stopwatch times it.

    Args:
        name: Such as "forward" or "precondition".

    Yields:
        Nothing.
    """
    watch = _running.get()
    if watch is None:
        yield
        return
    with watch.time(name):
        yield
