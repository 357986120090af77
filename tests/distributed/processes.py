"""Processes that are started once and run one function after another, as the ranks of a new process group each time."""

import os
import tempfile
import traceback
import warnings
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = 30
"""After so long, a process that waits for another gives up: a deadlock is a failure."""


class Processes:
    """A few processes on this machine, forked from one that has imported torch."""

    def __init__(self, size):
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch", "fngd", "torch.distributed.fsdp", "torch.distributed.checkpoint"])
        self._folder = tempfile.TemporaryDirectory()
        self._groups = 0
        self._pipes = []
        self._processes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, world_size, function, *args):
        """What `function(rank, *args)` returns on each of the ranks 0 … world_size − 1."""
        self._groups += 1
        store = str(Path(self._folder.name) / f"group{self._groups}")
        for pipe in self._pipes[:world_size]:
            pipe.send((world_size, store, function, args))
        answers = [_answer(pipe) for pipe in self._pipes[:world_size]]
        errors = [error for _, error in answers if error]
        assert not errors, "\n".join(errors)
        return [value for value, _ in answers]

    def stop(self):
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(SECONDS)
        self._folder.cleanup()


def _answer(pipe):
    if not pipe.poll(3 * SECONDS):
        return None, "no answer: the process hangs"
    try:
        return pipe.recv()
    except EOFError:
        return None, "no answer: the process died"


def _serve(pipe, rank):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    while (order := pipe.recv()) is not None:
        world_size, store, function, args = order
        try:
            torch.manual_seed(0)
            file = dist.FileStore(store, world_size)
            dist.init_process_group(
                "gloo", store=file, rank=rank, world_size=world_size, timeout=timedelta(seconds=SECONDS)
            )
            try:
                answer = function(rank, *args), None
            finally:
                dist.destroy_process_group()
        except Exception:
            answer = None, f"rank {rank}:\n{traceback.format_exc()}"
        pipe.send(answer)
