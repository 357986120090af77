"""The race in one process or in several fresh ones, and what is handed back from there.

Where a model and its activations come to lie in memory is settled when a process starts, differs from method to method,
and is worth a percent or two: more rounds in the same process do not average it out, more processes do.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import torch

from fngd_bench.errors import InputError
from fngd_bench.price import memory, race
from fngd_bench.price.methods import METHODS
from fngd_bench.price.neighbours import Watch
from fngd_bench.price.record import StepSettings
from fngd_bench.price.surroundings import Surroundings, together


@dataclass(frozen=True)
class Heat:
    """What was measured in a process, or in several."""

    parameters: int
    seconds: list[list[float]]
    """Of each timed step, a list for each method."""
    surroundings: Surroundings
    requests: list[memory.Request]
    """What the memory runs of each method need."""


def run(wanted: StepSettings, advance: race.Advance) -> Heat:
    """Time the methods, in this process or in as many fresh ones as are asked for, one after the other.

    Args:
        wanted: Resolved settings.
        advance: Told of each round when it is done.

    Returns:
        What was measured in all of them.
    """
    if wanted.processes == 1:
        return run_here(wanted, advance)
    steps = wanted.steps // wanted.processes
    parts = [replace(wanted, steps=steps, seed=wanted.seed + number) for number in range(wanted.processes)]
    return _joined([_run_apart(part, advance) for part in parts])


def run_here(wanted: StepSettings, advance: race.Advance) -> Heat:
    """Time the methods in this process.

    Args:
        wanted: Resolved settings; all its steps are taken here.
        advance: Told of each round when it is done.

    Returns:
        What was measured.
    """
    with torch.random.fork_rng(), race.room_for_graphs(wanted):
        runners = race.racers([METHODS[name] for name in wanted.methods], race.start(wanted), compiled=wanted.compiled)
        watch = Watch()
        seconds = race.interleave(runners, wanted, advance, watch)
        return Heat(
            parameters=sum(parameter.numel() for parameter in runners[0].model.parameters()),
            seconds=seconds,
            surroundings=watch.seen(),
            requests=[memory.request(wanted, runner) for runner in runners],
        )


def _run_apart(wanted: StepSettings, advance: race.Advance) -> Heat:
    """The same in a fresh process, which says how far it is."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(wanted, there), daemon=True)
    process.start()
    there.close()
    try:
        while isinstance(message := here.recv(), str):
            advance(message)
    except EOFError as error:
        process.join()
        if process.exitcode is None or process.exitcode >= 0:
            raise RuntimeError(f"a process that timed {', '.join(wanted.methods)} failed: it has said why") from error
        raise InputError(
            f"the process that timed {', '.join(wanted.methods)} with batch={wanted.batch} was killed: most likely "
            "memory ran out; pass a smaller --batch or fewer --methods"
        ) from error
    finally:
        process.kill()
        process.join()
    assert isinstance(message, Heat)
    return message


def _send(wanted: StepSettings, there: Connection) -> None:
    there.send(run_here(wanted, there.send))


def _joined(heats: Sequence[Heat]) -> Heat:
    """One after the other; memory is measured from where the first one was."""
    first = heats[0]
    seconds = [[each for heat in heats for each in heat.seconds[column]] for column in range(len(first.seconds))]
    return replace(first, seconds=seconds, surroundings=together([heat.surroundings for heat in heats]))
