"""`fngd train` and `fngd compare`: one run, or many and their report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fngd_bench.cli.data import Folder
from fngd_bench.cli.options import TRAIN_METHODS, WORKLOADS, Seed
from fngd_bench.cli.report import report
from fngd_bench.errors import InputError
from fngd_bench.train import torchrun

if TYPE_CHECKING:
    from fngd_bench.runs.events import End, Setting
    from fngd_bench.train.run import Request

STOPPED, FAILED = 130, 1
Scale = Annotated[str, typer.Option(help="smoke (seconds), cpu (minutes on two cores) or paper.")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Where run folders are put.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with runs that were interrupted; finished ones stand.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the training data, in place of the workload's.")]
Batch = Annotated[int | None, typer.Option(help="Samples of a batch, in place of the workload's.")]
Device = Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1, mps, ….")]
Board = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write TensorBoard logs there too.")]


def train(
    workload: Annotated[str, typer.Argument(help=f"One of {WORKLOADS}.")],
    method: Annotated[str, typer.Argument(help=f"One of {TRAIN_METHODS}.")],
    scale: Scale = "cpu",
    seed: Seed = 0,
    lr: Annotated[float | None, typer.Option(help="Learning rate, in place of the method's.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another hyperparameter of the method; may be repeated."),
    ] = None,
    epochs: Epochs = None,
    batch: Batch = None,
    out: Out = Path("runs"),
    data: Folder = None,
    device: Device = "cpu",
    resume: Resume = False,
    tensorboard: Board = None,
) -> None:
    """Train one workload with one method; the record and the checkpoints go into a folder of the run's own.

    Example: `fngd train digits-cnn fngd --seed 1 --set alpha=0.01`
    """
    from fngd_bench.train.run import Request, run

    request = Request(
        workload=workload,
        method=method,
        scale=scale,
        seed=seed,
        epochs=epochs,
        batch=batch,
        hyperparameters=_hyperparameters(lr, settings or []),
        out=out,
        data=data,
        device=device,
        resume=resume,
        tensorboard=tensorboard,
    )
    _leave([_shown(request) if torchrun.rank() == 0 else run(request, lambda _: None)[1]])


def compare(
    workload: Annotated[str, typer.Argument(help=f"One of {WORKLOADS}.")],
    methods: Annotated[str, typer.Option(help=f"Comma-separated, of {TRAIN_METHODS}.")] = "sgd-m,adamw,kfac,fngd",
    seeds: Annotated[int, typer.Option(help="Runs of each method, with the seeds 0, 1, ….")] = 3,
    scale: Scale = "cpu",
    epochs: Epochs = None,
    batch: Batch = None,
    out: Out = Path("runs"),
    data: Folder = None,
    device: Device = "cpu",
    resume: Resume = False,
    tensorboard: Board = None,
    page: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path("report.html"),
) -> None:
    """Train one workload with several methods and seeds, each run in a process of its own, then report.

    Example: `fngd compare digits-cnn --methods sgd-m,fngd,fngd-constant --seeds 3`
    """
    from fngd_bench import files
    from fngd_bench.train.run import Request

    files.check_writable(page)
    names = method_names(methods)
    requests = [
        Request(
            workload=workload,
            method=name,
            scale=scale,
            seed=seed,
            epochs=epochs,
            batch=batch,
            out=out,
            data=data,
            device=device,
            resume=resume,
            tensorboard=tensorboard,
        )
        for seed in seed_range(seeds)
        for name in names
    ]
    run_and_report(requests, page)


def method_names(text: str) -> list[str]:
    """The methods of a comma-separated list.

    Args:
        text: Such as "sgd-m,fngd".

    Returns:
        Their names; whether each is known is checked with the rest of a request.

    Raises:
        InputError: If none is named, or one twice.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise InputError(f"methods={text!r} must name one method or more, each once")
    return names


def seed_range(count: int) -> range:
    """The seeds 0, 1, ….

    Args:
        count: How many.

    Returns:
        The seeds.

    Raises:
        InputError: If there is none.
    """
    if count < 1:
        raise InputError(f"seeds={count} must be at least 1; with 3 there is a spread to see")
    return range(count)


def run_and_report(requests: Sequence[Request], page: Path) -> None:
    """Do the runs, show the table, write the page.

    Args:
        requests: What is asked for.
        page: Where the page goes.
    """
    from fngd_bench import console
    from fngd_bench.train.compare import run_all
    from fngd_bench.train.run import choose, folder

    for request in requests:
        choose(request)
    labels = [f"{request.method} seed {request.seed}" for request in requests]
    with console.training(labels) as progress:
        outcomes = run_all(requests, progress)
    for outcome in outcomes:
        if outcome.end is None:
            name = f"{outcome.request.method} seed {outcome.request.seed}"
            typer.echo(f"{name}: its process died (exit code {outcome.exit_code}); --resume tries it again", err=True)
    report([folder(outcome.request).path for outcome in outcomes], page)
    _leave([outcome.end for outcome in outcomes])


def _shown(request: Request) -> End:
    """Do a run, show how far it is, and say how it ended."""
    from fngd_bench import console
    from fngd_bench.runs import reader
    from fngd_bench.train.run import run

    with console.training([f"{request.workload} {request.method}"]) as report:
        folder, end = run(request, lambda progress: report(0, progress))
    typer.echo(console.run_summary(reader.read(folder.record)))
    return end


def _hyperparameters(lr: float | None, settings: Sequence[str]) -> dict[str, Setting]:
    """What `--lr` and `--set` say."""
    found: dict[str, Setting] = {} if lr is None else {"lr": lr}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set {text} must be NAME=VALUE, such as --set weight_decay=0.001")
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Setting:
    """A number, true, false or none if it reads as one; else the text."""
    words: dict[str, Setting] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _leave(ends: Sequence[End | None]) -> None:
    """End with a code that says what happened.

    Raises:
        Exit: If a run did not finish.
    """
    reasons = ["died" if end is None else end.reason for end in ends]
    if "stopped" in reasons:
        if torchrun.rank() == 0:
            typer.echo("fngd: stopped; the same command with --resume goes on from the last checkpoint", err=True)
        raise typer.Exit(STOPPED)
    if set(reasons) != {"finished"}:
        raise typer.Exit(FAILED)
