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
    from fngd_bench.price import steps
    from fngd_bench.price.record import REFERENCE
    from fngd_bench.price.uses import diagnosis

    typer.echo(str(diagnosis(steps.resolve(model, (REFERENCE,), steps=1, batch=batch))))
