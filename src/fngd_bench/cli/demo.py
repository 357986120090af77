"""`fngd demo`: see it work."""

from __future__ import annotations

from typing import Annotated

import typer

from fngd_bench.cli.options import Seed


def demo(
    epochs: Annotated[int, typer.Option(help="Passes over the training images, at least 2.")] = 8,
    seed: Seed = 0,
) -> None:
    """Train a small CNN on scikit-learn's digits with SGD and with FNGD, and show them side by side.

    Example: `fngd demo`
    """
    from fngd_bench import console, demo_report
    from fngd_bench.demo import Plan, run

    plan = Plan(epochs=epochs, seed=seed)
    with console.progress(plan.epochs) as advance:
        outcome = run(plan, advance)
    console.show(demo_report.table(plan, outcome))
    for sentence in demo_report.sentences(outcome):
        typer.echo(sentence)
