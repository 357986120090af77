"""From what the user asks for to a run that is over: resolve the settings, build, start or resume, train."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from fngd_bench.train import checkpoint, torchrun
from fngd_bench.train.board import Board
from fngd_bench.train.folder import Folder
from fngd_bench.train.loop import Loop, Pace
from fngd_bench.train.ranks import Ranks, joined
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
    """Do a whole run, or what is left of it; one of its ranks, where torchrun has started several.

    Args:
        request: What the user asks for.
        report: Told of every step.

    Returns:
        The run's folder and how the run ended.
    """
    with joined(request.device) as ranks:
        return run_on(ranks, request, report)


def run_on(ranks: Ranks, request: Request, report: Report) -> tuple[Folder, End]:
    """As `run`, together with others.

    Args:
        ranks: All that do the run.
        request: What the user asks for, the same on all ranks.
        report: Told of every step.

    Returns:
        The run's folder and how the run ended.
    """
    with ranks.together():
        choice = choose(request)
        _check_ranks(ranks, choice)
        device = _device(ranks.device(request.device))
    resident.forget_peak()
    base_bytes = resident.resident_bytes()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        place = folder(request)
        with ranks.together():
            problem = workloads.build(choice.size, batch=choice.batch, seed=request.seed, folder=request.data)
            settings = choice.settings(request, problem.steps_per_epoch)
            past = _past(place, settings, resume=request.resume) if ranks.first else None
        with ranks.together():
            _check_seen(place)
        if (over := ranks.share(_over(past, place))) is not None:
            return place, over
        training = Training(settings, problem, device, ranks)
        with _stop_on_signals() as stopped, Journal(place.record if ranks.first else None) as journal:
            _open(journal, training, place, past, request.tensorboard)
            loop = Loop(
                training, place, journal, report=report, stopped=stopped, pace=request.pace, base_bytes=base_bytes
            )
            return place, loop.run()


def _check_ranks(ranks: Ranks, choice: Choice) -> None:
    """Refuse a batch that cannot be divided, and a method that several ranks cannot do.

    Raises:
        InputError: If it is one.
    """
    ranks.part(choice.batch)
    if ranks.size > 1 and choice.method.one_process is not None:
        able = ", ".join(name for name, row in optimizers.METHODS.items() if row.one_process is None)
        raise InputError(
            f"method={choice.method.name!r} cannot be done by {ranks.size} ranks: {choice.method.one_process}. Start "
            f"it without torchrun, or choose from {able}"
        )


def _check_seen(place: Folder) -> None:
    """After a restart any rank may be the one that writes.

    Raises:
        InputError: If this rank would not find what the first has begun.
    """
    if torchrun.may_restart() and not place.record.exists():
        raise InputError(
            f"{place.record}, which rank 0 has begun, is not to be seen here, and after a restart any node may be the "
            "one that writes it: let --out be a folder that all nodes share, or start torchrun with --max-restarts 0"
        )


def _past(place: Folder, settings: RunSettings, *, resume: bool) -> Run | None:
    """What lies in the folder, if it is to be resumed or an earlier attempt left it there; else the folder is made."""
    if resume or _restarted(place):
        return place.resume(settings)
    place.start()
    return None


def _restarted(place: Folder) -> bool:
    """Whether torchrun has restarted what it began; nodes do not count attempts alike, so the record must know."""
    return torchrun.launched() and place.job == torchrun.job()


def _over(past: Run | None, place: Folder) -> End | None:
    """How a run ended that is over; one that has diverged is not tried again by a restart."""
    if past is None or past.end is None:
        return None
    final = ("finished", "diverged") if _restarted(place) else ("finished",)
    return past.end if past.end.reason in final else None


def _open(journal: Journal, training: Training, place: Folder, past: Run | None, board: Path | None) -> None:
    """Write the first line of a new run, or that of a resumption from the latest checkpoint."""
    ranks = training.ranks
    with ranks.together():
        saved = None if past is None else checkpoint.latest(place.checkpoints)
    saved = ranks.share(saved)
    with ranks.together():
        if saved is not None:
            training.load(saved)
        if board is not None and ranks.first:
            journal.tell(Board(board / place.path.name, training.step_count))
    here = replace(provenance(), ranks=ranks.size, backend=ranks.backend, job=torchrun.job())
    if past is None:
        parameters = sum(parameter.numel() for parameter in training.model.parameters())
        journal.write(Header(settings=training.settings, provenance=here, parameters=parameters), sync=True)
    else:
        journal.write(Resumed(step=training.step_count, provenance=here), sync=True)


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
