"""`fngd demo`: nine methods side by side on data that need no file, in minutes."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from fngd_bench.cli.train import run_and_report, seed_range

METHODS = ("sgd-m", "adamw", "muon", "kfac", "shampoo", "eva", "ngd", "fngd", "fngd-constant")


def demo(
    seeds: Annotated[int, typer.Option(help="Runs of each method, with the seeds 0, 1, ….")] = 3,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where runs and page go; a new folder below runs/ by default.")
    ] = None,
) -> None:
    """Train a small CNN on scikit-learn's digits with nine methods, three seeds each, and show them side by side.

    Example: `fngd demo`
    """
    from fngd_bench.train.run import Request

    folder = Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}" if out is None else out
    requests = [
        Request(workload="digits-cnn", method=method, seed=seed, epochs=epochs, out=folder)
        for seed in seed_range(seeds)
        for method in METHODS
    ]
    run_and_report(requests, folder / "report.html")
