"""From what the user asks for to a run that is over: resolve the settings, build, start or resume, train."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch

from fngd_bench import optimizers, resident, workloads
from fngd_bench.errors import InputError
from fngd_bench.here import provenance
from fngd_bench.optimizers import Method
from fngd_bench.runs.events import End, Header, Resumed, RunSettings, Setting
from fngd_bench.runs.journal import Journal
from fngd_bench.runs.progress import Progress
from fngd_bench.runs.reader import Run
from fngd_bench.train import checkpoint
from fngd_bench.train.board import Board
from fngd_bench.train.folder import Folder
from fngd_bench.train.loop import Loop, Pace
from fngd_bench.train.training import Training
from fngd_bench.workloads import Scale, Workload


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asks for; what is left out comes from the tables."""

    workload: str
    method: str
    scale: str = "cpu"
    seed: int = 0
    epochs: int | None = None
    batch: int | None = None
    hyperparameters: Mapping[str, Setting] = field(default_factory=dict)
    out: Path = Path("runs")
    data: Path | None = None
    device: str = "cpu"
    resume: bool = False
    tensorboard: Path | None = None
    """TensorBoard's folder, if its logs are wanted."""
    pace: Pace = field(default_factory=Pace)


Report = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a request comes down to before any data are read."""

    row: Workload
    size: Scale
    method: Method
    hyperparameters: dict[str, Setting]
    epochs: int
    batch: int

    def settings(self, request: Request, steps_per_epoch: int) -> RunSettings:
        """The settings that are recorded."""
        return RunSettings(
            workload=self.row.name,
            scale=request.scale,
            method=self.method.name,
            seed=request.seed,
            hyperparameters=self.hyperparameters,
            epochs=self.epochs,
            batch=self.batch,
            steps_per_epoch=steps_per_epoch,
            schedule=self.row.schedule,
            metric=self.row.metric,
            target=self.size.target,
        )


def choose(request: Request) -> Choice:
    """Fill in the defaults of the tables and check what was asked for.

    Args:
        request: What the user asks for.

    Returns:
        The choice.

    Raises:
        InputError: If something is unknown or out of range.
    """
    row = workloads.workload(request.workload)
    size = workloads.scale(row, request.scale)
    method = optimizers.method(request.method)
    epochs = size.longer.get(method.name, size.epochs) if request.epochs is None else request.epochs
    batch = size.batch if request.batch is None else request.batch
    for name, value, least in (("epochs", epochs, 1), ("batch", batch, 2), ("seed", request.seed, 0)):
        if value < least:
            raise InputError(f"{name}={value} must be at least {least}")
    hyperparameters = optimizers.resolve(method, row.family, request.hyperparameters)
    return Choice(row=row, size=size, method=method, hyperparameters=hyperparameters, epochs=epochs, batch=batch)


def folder(request: Request) -> Folder:
    """Where a request's run lies.

    Args:
        request: What the user asks for.

    Returns:
        The folder, which need not exist.
    """
    return Folder(request.out / f"{request.workload}-{request.scale}-{request.method}-seed{request.seed}")


def run(request: Request, report: Report) -> tuple[Folder, End]:
    """Do a whole run, or what is left of it.

    Args:
        request: What the user asks for.
        report: Told of every step.

    Returns:
        The run's folder and how the run ended.
    """
    choice = choose(request)
    device = _device(request.device)
    resident.forget_peak()
    base_bytes = resident.resident_bytes()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        problem = workloads.build(choice.size, batch=choice.batch, seed=request.seed, folder=request.data)
        settings = choice.settings(request, problem.steps_per_epoch)
        place = folder(request)
        past = _past(place, settings, resume=request.resume)
        if past is not None and past.end is not None and past.end.reason == "finished":
            return place, past.end
        training = Training(settings, problem, device)
        with _stop_on_signals() as stopped, Journal(place.record) as journal:
            _open(journal, training, place, past, request.tensorboard)
            loop = Loop(
                training, place, journal, report=report, stopped=stopped, pace=request.pace, base_bytes=base_bytes
            )
            return place, loop.run()


def _past(place: Folder, settings: RunSettings, *, resume: bool) -> Run | None:
    """What lies in the folder, if it is to be resumed; else the folder is made."""
    if resume:
        return place.resume(settings)
    place.start()
    return None


def _open(journal: Journal, training: Training, place: Folder, past: Run | None, board: Path | None) -> None:
    """Write the first line of a new run, or that of a resumption from the latest checkpoint."""
    saved = None if past is None else checkpoint.latest(place.checkpoints)
    if saved is not None:
        training.load(saved)
    if board is not None:
        journal.tell(Board(board / place.path.name, training.step_count))
    if past is None:
        parameters = sum(parameter.numel() for parameter in training.model.parameters())
        journal.write(Header(settings=training.settings, provenance=provenance(), parameters=parameters), sync=True)
    else:
        journal.write(Resumed(step=training.step_count, provenance=provenance()), sync=True)


@contextmanager
def _stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Let SIGTERM, and Ctrl-C the first time, end the run after its current step; the second Ctrl-C ends it at once.

    Yields:
        A function that says whether a signal has come.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, _: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device={name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device
