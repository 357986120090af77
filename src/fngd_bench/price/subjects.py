"""What grows: single layers and whole networks, with the sizes at which they are measured.

| subject | what it is | batch | width | depth |
|---|---|---|---|---|
| linear | one fully connected layer D → D | samples M | D | – |
| convolution | one 3×3 convolution C → C on 8×8 pixels | samples M | C | – |
| mlp | fully connected layers D → D with ReLU | samples M | D | layers |
| resnet | ResNet-32 for 32×32 pixels and its relatives | samples M | first stage's channels | layers, 6n + 2 |

A single layer also computes the gradient of its input, as it would inside of a network. Layers and the mlp are fitted
to random targets by squared error, the ResNets classify random images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fngd_bench.errors import InputError
from fngd_bench.models.cifar_resnet import CifarResNet
from fngd_bench.models.stack import stack
from fngd_bench.price.batches import Batch, loss
from fngd_bench.price.scaling_record import Point

BATCHES = 8
"""Different batches that take turns: with a single one, KFAC's factors would keep the rank of that batch."""
PIXELS, RESNET_PIXELS, CLASSES = 8, 32, 10


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes: what stays as it is while one of them grows, and how far each grows."""

    batch: int
    width: int
    depth: int = 1
    axes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One thing that grows."""

    name: str
    kind: str
    """Either "layer" or "model"."""
    build: Callable[[int, int], nn.Module]
    """From width and depth."""
    shape: Callable[[int], tuple[int, ...]]
    """Of one sample, from the width."""
    loss: Callable[[Tensor, Tensor], Tensor]
    targets: Callable[[Tensor, torch.Generator], Tensor]
    plans: Mapping[str, Plan]
    """By scale."""


class Start(NamedTuple):
    """What all methods start from at one point."""

    model: nn.Module
    batches: tuple[Batch, ...]
    loss: Callable[[Tensor, Tensor], Tensor]


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """½‖y − t‖², the mean over samples.

    Args:
        outputs: (M, …).
        targets: The same shape.

    Returns:
        The loss.
    """
    return (outputs - targets).square().sum() / (2 * len(outputs))


def _alike(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Targets of the inputs' shape."""
    return torch.randn(inputs.shape, generator=generator)


def _classes(inputs: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(CLASSES, (len(inputs),), generator=generator)


_SAMPLES = (16, 32, 64, 128, 256, 512)
_TINY = {"batch": (2, 4, 8), "width": (4, 8, 16)}
_ROWS = (
    Subject(
        name="linear",
        kind="layer",
        build=lambda width, _: nn.Linear(width, width),
        shape=lambda width: (width,),
        loss=squared,
        targets=_alike,
        plans={
            "cpu": Plan(batch=128, width=512, axes={"batch": _SAMPLES, "width": (64, 128, 256, 512, 1024)}),
            "smoke": Plan(batch=4, width=8, axes=_TINY),
        },
    ),
    Subject(
        name="convolution",
        kind="layer",
        build=lambda width, _: nn.Conv2d(width, width, 3, padding=1),
        shape=lambda width: (width, PIXELS, PIXELS),
        loss=squared,
        targets=_alike,
        plans={
            "cpu": Plan(batch=128, width=64, axes={"batch": _SAMPLES, "width": (8, 16, 32, 64, 128)}),
            "smoke": Plan(batch=4, width=4, axes={"batch": (2, 4, 8), "width": (2, 4, 8)}),
        },
    ),
    Subject(
        name="mlp",
        kind="model",
        build=stack,
        shape=lambda width: (width,),
        loss=squared,
        targets=_alike,
        plans={
            "cpu": Plan(
                batch=128,
                width=256,
                depth=8,
                axes={"batch": _SAMPLES, "width": (32, 64, 128, 256, 512), "depth": (2, 4, 8, 16, 32)},
            ),
            "smoke": Plan(batch=4, width=8, depth=2, axes={**_TINY, "depth": (1, 2, 4)}),
        },
    ),
    Subject(
        name="resnet",
        kind="model",
        build=lambda width, depth: CifarResNet((depth - 2) // 6, CLASSES, width),
        shape=lambda _: (3, RESNET_PIXELS, RESNET_PIXELS),
        loss=loss,
        targets=_classes,
        plans={
            "cpu": Plan(
                batch=32,
                width=16,
                depth=32,
                axes={"batch": _SAMPLES, "width": (4, 8, 12, 16, 24), "depth": (14, 20, 32, 44, 56)},
            ),
            "smoke": Plan(
                batch=4, width=2, depth=8, axes={"batch": (2, 4, 8), "width": (2, 4, 6), "depth": (8, 14, 20)}
            ),
        },
    ),
)
SUBJECTS: dict[str, Subject] = {row.name: row for row in _ROWS}
SCALES = ("smoke", "cpu")


def parse(names: str) -> tuple[str, ...]:
    """Subjects from a comma-separated list of their names and kinds.

    Args:
        names: Such as "layer,resnet".

    Returns:
        Their names, each once, in the table's order.

    Raises:
        InputError: If one is unknown or none is named.
    """
    words = [word.strip() for word in names.split(",") if word.strip()]
    known = {*SUBJECTS, *(row.kind for row in _ROWS)}
    if not words or not known.issuperset(words):
        raise InputError(
            f"subject={names!r}: name one or more of layer ({_of('layer')}) and model ({_of('model')}), or single ones"
        )
    return tuple(row.name for row in _ROWS if row.name in words or row.kind in words)


def _of(kind: str) -> str:
    return ", ".join(row.name for row in _ROWS if row.kind == kind)


def points(subject: Subject, axis: str, scale: str) -> tuple[Point, ...]:
    """The sizes of a subject along one axis.

    Args:
        subject: The subject.
        axis: What grows.
        scale: One of `SCALES`.

    Returns:
        The points, small ones first; none if the subject does not grow that way.
    """
    plan = subject.plans[scale]
    fixed = {"batch": plan.batch, "width": plan.width, "depth": plan.depth}
    sizes = plan.axes.get(axis, ())
    return tuple(Point(subject=subject.name, axis=axis, **{**fixed, axis: size}) for size in sizes)


def start(point: Point, seed: int, batches: int = BATCHES) -> Start:
    """Model and batches of a point; seeds torch's generator, so call it where that is restored.

    Args:
        point: The point.
        seed: Of weights and batches.
        batches: How many.

    Returns:
        The same weights and samples for the same point and seed.
    """
    subject = SUBJECTS[point.subject]
    torch.manual_seed(seed)
    model = subject.build(point.width, point.depth)
    generator = torch.Generator().manual_seed(seed)
    return Start(model, tuple(_batch(subject, point, generator) for _ in range(batches)), subject.loss)


def _batch(subject: Subject, point: Point, generator: torch.Generator) -> Batch:
    inputs = torch.randn((point.batch, *subject.shape(point.width)), generator=generator)
    targets = subject.targets(inputs, generator)
    return Batch((inputs.requires_grad_(subject.kind == "layer"),), targets)
