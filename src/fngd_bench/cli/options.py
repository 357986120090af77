"""Options that several commands share, and the names they list, without torch: `--help` does not wait for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODELS = "resnet32, resnet110, vgg11, resnet18, resnet34, resnet50, transformer or small-cnn"
METHODS = (
    "sgd, fngd-share, fngd-constant, fngd-derive, fngd-refreshed, fngd-head, adamw, muon, shampoo, soap, adahessian, "
    "kfac, eva, fngd-adamw"
)
"""Whose step can be priced."""
TRAIN_METHODS = (
    "sgd-m, adamw, muon, shampoo, soap, adahessian, kfac, eva, fngd, ngd, fngd-constant, fngd-refreshed, fngd-damped, "
    "fngd-adamw, fngd-head, fngd-head-residual"
)
"""The table of methods that train."""
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the record, raw times included.")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn.")]
WORKLOADS = (
    "digits-cnn, numbers-transformer, cifar10-resnet32, cifar10-vgg11, cifar100-resnet18, cifar100-resnet34, "
    "imagenet-resnet50, tiny20-resnet50, multi30k-transformer, cifar10-noisy-resnet32, cifar10-longtail-resnet32"
)
