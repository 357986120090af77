"""Options that several commands share, and the names they list."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODELS = "resnet32, resnet110, vgg11, resnet18, resnet34, resnet50, transformer or small-cnn"
METHODS = "sgd, fngd-share, fngd-constant, fngd-derive, fngd-refreshed"
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the record, raw times included.")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn.")]
