"""`fngd tune`: hyperparameters, with the same number of trials for every method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fngd_bench.cli.data import Folder
from fngd_bench.cli.options import TRAIN_METHODS, WORKLOADS, Seed
from fngd_bench.cli.train import Batch, Device, Epochs, Scale, method_names

if TYPE_CHECKING:
    from fngd_bench.runs.best import Best


def tune(
    workload: Annotated[str, typer.Argument(help=f"One of {WORKLOADS}.")],
    methods: Annotated[str, typer.Option(help=f"Comma-separated, of {TRAIN_METHODS}.")] = "sgd-m,fngd",
    trials: Annotated[int, typer.Option(help="Trials of each method.")] = 12,
    sampler: Annotated[str, typer.Option(help="tpe or grid.")] = "tpe",
    scale: Scale = "cpu",
    seed: Seed = 0,
    epochs: Epochs = None,
    batch: Batch = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Trials and their runs; run it again to go on.")] = Path(
        "runs/tune"
    ),
    data: Folder = None,
    device: Device = "cpu",
) -> None:
    """Find hyperparameters on one workload, with the same number of trials for every method.

    Run it again to go on after an interruption; run it several times at once, also on machines that share the folder,
    to go faster.

    Example: `fngd tune digits-cnn --methods sgd-m,fngd --trials 12`
    """
    from fngd_bench import console
    from fngd_bench.train.run import Request
    from fngd_bench.train.tune import Tuning
    from fngd_bench.train.tune import tune as search

    def request(method: str) -> Request:
        place = out / f"{workload}-{scale}"
        return Request(
            workload=workload,
            method=method,
            scale=scale,
            seed=seed,
            epochs=epochs,
            batch=batch,
            out=place,
            data=data,
            device=device,
        )

    tunings = [Tuning(request=request(name), trials=trials, sampler=sampler) for name in method_names(methods)]
    found: list[Best] = []
    for tuning in tunings:
        with console.training([f"{tuning.request.method}, trial {k}" for k in range(trials)]) as report:
            found.append(search(tuning, lambda number, progress: report(min(number, trials - 1), progress)))
    console.show(console.tuned(found, workload))
