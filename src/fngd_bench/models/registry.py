"""The table of networks: how each is built, what it eats, and the batch the paper gives it.

A new network is one file beside this one and one row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fngd_bench.errors import InputError
from fngd_bench.models.cifar_resnet import resnet32, resnet110
from fngd_bench.models.resnet import resnet18, resnet34, resnet50
from fngd_bench.models.small import small_cnn
from fngd_bench.models.transformer import transformer
from fngd_bench.models.vgg import vgg11


@dataclass(frozen=True)
class Images:
    """Square images, (M, channels, size, size)."""

    channels: int
    size: int
    smallest: int
    """The smallest size that survives the network's strides and pools."""


@dataclass(frozen=True)
class Tokens:
    """Pairs of token sequences, source and target, each (M, length)."""

    length: int


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One network: `make(classes)` builds it; the rest are its defaults in a benchmark."""

    name: str
    make: Callable[[int], nn.Module]
    inputs: Images | Tokens
    classes: int
    """Classes of an image, or words of the vocabulary."""
    batch: int


_CIFAR = Images(channels=3, size=32, smallest=32)
_IMAGENET = Images(channels=3, size=224, smallest=64)
_DIGITS = Images(channels=1, size=8, smallest=8)

_ENTRIES = (
    ModelEntry(name="resnet32", make=resnet32, inputs=_CIFAR, classes=10, batch=128),
    ModelEntry(name="resnet110", make=resnet110, inputs=_CIFAR, classes=10, batch=128),
    ModelEntry(name="vgg11", make=vgg11, inputs=_CIFAR, classes=10, batch=128),
    ModelEntry(name="resnet18", make=resnet18, inputs=_CIFAR, classes=100, batch=128),
    ModelEntry(name="resnet34", make=resnet34, inputs=_CIFAR, classes=100, batch=128),
    ModelEntry(name="resnet50", make=resnet50, inputs=_IMAGENET, classes=1000, batch=128),
    ModelEntry(name="transformer", make=transformer, inputs=Tokens(length=16), classes=8000, batch=64),
    ModelEntry(name="small-cnn", make=small_cnn, inputs=_DIGITS, classes=10, batch=64),
)
MODELS: dict[str, ModelEntry] = {row.name: row for row in _ENTRIES}


def entry(name: str) -> ModelEntry:
    """The table's row of one network.

    Args:
        name: A key of `MODELS`.

    Returns:
        The row.

    Raises:
        InputError: If there is no such network.
    """
    if name not in MODELS:
        raise InputError(f"model={name!r} is not known: choose one of {', '.join(MODELS)}")
    return MODELS[name]


def build(name: str, classes: int | None = None) -> nn.Module:
    """A network with fresh weights, drawn from torch's global generator.

    Args:
        name: A key of `MODELS`.
        classes: Classes of an image, or words of the vocabulary; by default the network's usual number.

    Returns:
        The network, in training mode.

    Raises:
        InputError: If there is no such network, or `classes` is below 2.
    """
    row = entry(name)
    classes = row.classes if classes is None else classes
    if classes < 2:
        raise InputError(f"classes={classes} must be at least 2: one class leaves nothing to tell apart")
    return row.make(classes)
