"""The rules of the clock: what a timed section is.

Seconds come from `time.perf_counter`. An accelerator is waited for at both borders of a section, so that a section pays
for the work it started and for no other. Python's garbage collector is off inside and run outside, so that no section
pays for another's garbage.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
