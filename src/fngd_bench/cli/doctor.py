"""`fngd doctor`: what would be preconditioned."""

from __future__ import annotations

from typing import Annotated

import typer

from fngd_bench.cli.options import MODELS


def doctor(
    model: Annotated[str, typer.Argument(help=f"{MODELS}.")],
    batch: Annotated[int | None, typer.Option(help="Samples of a batch; by default 128, 64 for transformer.")] = None,
) -> None:
    """Say which layers of a model FNGD would precondition, which not, and why.

    Example: `fngd doctor resnet32`
    """
    import torch

    import fngd
    from fngd_bench.price import race, steps

    with torch.random.fork_rng(), torch.device("meta"):  # shapes say it all: nothing is computed
        begin = race.start(steps.resolve(model, ("sgd",), steps=1, batch=batch))
        diagnosis = fngd.doctor(begin.model, *begin.batch.inputs)
    typer.echo(str(diagnosis))
