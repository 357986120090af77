"""`fngd doctor`: what would be preconditioned."""

from __future__ import annotations

from typing import Annotated

import typer

from fngd_bench.cli.options import MODELS


def doctor(
    model: Annotated[str, typer.Argument(help=f"{MODELS}.")],
    batch: Annotated[int, typer.Option(help="Samples of the example batch, at least 2.")] = 2,
) -> None:
    """Say which layers of a model FNGD would precondition, which not, and why.

    Example: `fngd doctor resnet32`
    """
    import torch

    import fngd
    from fngd_bench.price import race, steps

    with torch.random.fork_rng():
        begin = race.start(steps.resolve(model, ("sgd",), steps=1, batch=batch))
    typer.echo(str(fngd.doctor(begin.model, *begin.batch.inputs)))
