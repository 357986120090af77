"""Many runs one after the other, each in a process of its own: no run inherits another's memory, caches or crash.

The processes are forked from a server that has imported torch and computed nothing, where the system can do that: a
fresh process is then there in a moment.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from fngd_bench.errors import InputError
from fngd_bench.runs.events import End
from fngd_bench.runs.progress import Progress
from fngd_bench.train import torchrun
from fngd_bench.train.run import Request, run

REPORT_SECONDS = 0.2
"""Progress is sent no more often than this."""
PATIENCE = 60.0
"""Seconds that a run is given to save itself when all are stopped."""


class Outcome(NamedTuple):
    """How one run ended."""

    request: Request
    end: End | None
    """None if its process died; the record then tells how far it came."""
    exit_code: int


Report = Callable[[int, Progress], None]
"""Told the number of the run, from 0, and how far it is."""


def run_all(requests: Sequence[Request], report: Report) -> list[Outcome]:
    """Do the runs in their order.

    Args:
        requests: What is asked for; check them with `choose` first.
        report: Told of progress.

    Returns:
        How each ended. A run that was stopped ends the whole.
    """
    torchrun.check_alone("a comparison or a search")
    outcomes: list[Outcome] = []
    for number, request in enumerate(requests):
        outcomes.append(_in_process(request, lambda progress, number=number: report(number, progress)))  # type: ignore[misc]
        if outcomes[-1].end is not None and outcomes[-1].end.reason == "stopped":
            break
    return outcomes


def _in_process(request: Request, report: Callable[[Progress], None]) -> Outcome:
    """One run in a process of its own.

    Raises:
        InputError: If the run refuses its input.
    """
    context = process_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(request, sender, torch.get_num_threads()))
    process.start()
    sender.close()
    end: End | None = None
    try:
        while True:
            message = receiver.recv()
            if isinstance(message, Progress):
                report(message)
            elif isinstance(message, End):
                end = message
            else:
                raise InputError(message)
    except EOFError:
        process.join()
    except BaseException:
        process.terminate()  # SIGTERM: the run saves itself
        process.join(PATIENCE)
        raise
    return Outcome(request, end, process.exitcode or 0)


def _child(request: Request, sender: Connection, threads: int) -> None:
    """The run itself, with as many threads as at home; says how far it is, how it ended, or what is wrong."""
    torch.set_num_threads(threads)
    said = float("-inf")

    def report(progress: Progress) -> None:
        nonlocal said
        if time.monotonic() - said >= REPORT_SECONDS or progress.step == progress.total:
            said = time.monotonic()
            sender.send(progress)

    try:
        sender.send(run(request, report)[1])
    except InputError as error:
        sender.send(str(error))


def process_context() -> multiprocessing.context.ForkServerContext | multiprocessing.context.SpawnContext:
    """How processes for runs are started: forked from a server that has imported the lab, where that can be done."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context
