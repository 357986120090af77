"""Peak memory of a method, measured in a process of its own.

The number is the peak of resident memory minus what the process held right before the model was built: weights,
gradients, momentum, activations and scratch memory, and what torch loads when an optimizer is made and a first step
taken, modules and kernels' code. Of a small network's number, the last is the larger part. A method that shares starts
from coefficients derived elsewhere, as after loading a checkpoint: otherwise the peak would be that of deriving.

The process is told to give large blocks back to the system as soon as they are freed (a setting of glibc's malloc).
Without that the peak depends on how the heap happened to fragment, which differs by 10 % from run to run; with it the
peak is that of memory in use, and repeats itself.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO

import torch

from fngd_bench.errors import InputError
from fngd_bench.price import race
from fngd_bench.price.methods import METHODS
from fngd_bench.price.record import StepSettings
from fngd_bench.resident import peak_resident_bytes, resident_bytes

STEPS = 3
"""Enough for momentum to exist and the allocator to settle."""
PROMPT_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Blocks above this many bytes are mapped and unmapped one by one."""


@dataclass(frozen=True)
class Request:
    """Which method to run, and the coefficients that a sharing one starts from, as bytes that cross processes."""

    wanted: StepSettings
    method: str
    coefficients: bytes


def request(wanted: StepSettings, runner: race.Racer) -> Request:
    """What a fresh process needs to repeat a racer's steps.

    Args:
        wanted: Resolved settings.
        runner: A racer that has warmed up.

    Returns:
        The request.
    """
    buffer = BytesIO()
    torch.save(runner.coefficients(), buffer)
    return Request(wanted, runner.method.name, buffer.getvalue())


def peak_bytes(asked: Request) -> int:
    """Run a few steps in a fresh process.

    Args:
        asked: The request.

    Returns:
        Peak resident bytes above those before the model was built.

    Raises:
        InputError: If the process was killed, which is what happens when memory runs out.
    """
    context = multiprocessing.get_context("spawn")
    with _environment(PROMPT_MALLOC), ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        try:
            return pool.submit(run_here, asked).result()
        except BrokenProcessPool as error:
            raise InputError(
                f"the process that ran {asked.method} with batch={asked.wanted.batch} was killed: most likely memory "
                "ran out; pass a smaller --batch"
            ) from error


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """The environment with these variables, for processes started meanwhile; put back as it was afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run_here(asked: Request) -> int:
    """Run a few steps in this process and return the growth of its peak; meant for a process that did nothing else.

    Args:
        asked: The request.

    Returns:
        Peak resident bytes above those before the model was built.
    """
    coefficients = torch.load(BytesIO(asked.coefficients), weights_only=True)
    with torch.random.fork_rng():
        before = resident_bytes()
        begin = race.start(asked.wanted)
        runner = race.Racer(METHODS[asked.method], begin.model, begin.batch)
        runner.take(coefficients)
        runner.check_phase()
        for _ in range(STEPS):
            runner.step()
        return peak_resident_bytes() - before
