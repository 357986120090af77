"""The table of problems: data, model, batch, schedule, metric, target and budget, at three scales.

`smoke` needs no file and takes seconds: the same networks, narrowed, on the embedded data. `cpu` is a run of minutes on
two cores. `paper` is what the paper ran, or for the problems it does not have, what a full run is; problems in which
samples should not all count the same are beyond the paper and have none.
Target, budget, metric and schedule belong to the problem; the recipe of a method to the method (`optimizers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from fngd_bench import data
from fngd_bench.data.tokens import train_vocabulary
from fngd_bench.data.types import ImageData, TextData
from fngd_bench.errors import InputError
from fngd_bench.models.cifar_resnet import resnet32
from fngd_bench.models.resnet import resnet18, resnet34, resnet50
from fngd_bench.models.small import small_cnn
from fngd_bench.models.transformer import Transformer
from fngd_bench.models.vgg import vgg11
from fngd_bench.problems import Classification, Problem, Translation
from fngd_bench.problems.classification import View
from fngd_bench.problems.translation import TextView

SCALES = ("smoke", "cpu", "paper")
Maker = Callable[[int], nn.Module]
"""From classes, or words of the vocabulary, to a model with fresh weights."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One problem at one size."""

    data: str
    model: Maker
    view: View | TextView
    batch: int
    epochs: int
    longer: Mapping[str, int] = field(default_factory=dict)
    """Epochs of the methods that are given more."""
    target: float | None = None
    """The metric to reach; None where nobody has named one."""
    vocabulary: int = 0
    """Words, for text."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One problem."""

    name: str
    about: str
    family: str
    """"images" or "translation": which recipe of a method is meant for it."""
    schedule: str
    scales: Mapping[str, Scale]

    @property
    def metric(self) -> str:
        """What is judged."""
        return (Classification if self.family == "images" else Translation).metric


_SMOKE = Scale(
    data="digits",
    model=small_cnn,
    view=View(train=64, test=50, size=32, channels=3, padding=2),
    batch=16,
    epochs=2,
    target=0.2,
)
"""Digits, enlarged and in colour: what stands in for photographs where there is no file."""
_SMALL_TEXT = Scale(
    data="numbers",
    model=partial(Transformer, layers=1, width=32, inner=64, heads=2),
    view=TextView(train=64, test=20, longest=30, reverse=True),
    batch=16,
    epochs=2,
    target=1.0,
    vocabulary=120,
)
_SMALL_TRANSFORMER = partial(Transformer, layers=3, width=256, inner=512, heads=8)


def _images(name: str, about: str, *, smoke: Scale, cpu: Scale, paper: Scale | None = None) -> Workload:
    scales = {"smoke": smoke, "cpu": cpu, **({} if paper is None else {"paper": paper})}
    return Workload(name=name, about=about, family="images", schedule="steps", scales=scales)


def _text(name: str, about: str, *, smoke: Scale, cpu: Scale, paper: Scale) -> Workload:
    scales = {"smoke": smoke, "cpu": cpu, "paper": paper}
    return Workload(name=name, about=about, family="translation", schedule="warm-up", scales=scales)


def _cifar(
    name: str, maker: Callable[..., nn.Module], dataset: str, *, narrow: int, cpu: Scale, paper: Scale
) -> Workload:
    return _images(
        name,
        f"{maker.__name__} on {dataset}, crops and flips",
        smoke=replace(_SMOKE, model=partial(maker, width=narrow)),
        cpu=replace(cpu, data=dataset, model=maker),
        paper=replace(paper, data=dataset, model=maker),
    )


_PAPER = Scale(data="", model=small_cnn, view=View(), batch=128, epochs=100, longer={"sgd-m": 200})
_IMAGENET = replace(_PAPER, model=resnet50, view=View(padding=16), epochs=55, longer={"sgd-m": 90})
_UNEVEN = replace(_PAPER, model=resnet32, epochs=12, longer={})
"""Samples that should not count the same, tested on all test images: a part of them would not be balanced."""
_UNEVEN_SMOKE = replace(_SMOKE, model=partial(resnet32, width=4))
_SMALL_IMAGENET = replace(_IMAGENET, view=View(train=3_200), batch=32, epochs=5, longer={})

_ROWS = (
    _images(
        "digits-cnn",
        "a small CNN with BatchNorm on scikit-learn's 8×8 digits; needs no file",
        smoke=replace(_SMOKE, view=View(train=256, test=100, padding=0), batch=32),
        cpu=Scale(data="digits", model=small_cnn, view=View(padding=0), batch=64, epochs=8, target=0.97),
        paper=Scale(data="digits", model=small_cnn, view=View(padding=1), batch=64, epochs=50, target=0.985),
    ),
    _text(
        "numbers-transformer",
        "a small Transformer that translates number words, German to English; needs no file",
        smoke=_SMALL_TEXT,
        cpu=Scale(
            data="numbers",
            model=partial(Transformer, layers=2, width=128, inner=256, heads=4),
            view=TextView(longest=40, reverse=True),
            batch=64,
            epochs=12,
            target=90.0,
            vocabulary=200,
        ),
        paper=Scale(
            data="numbers",
            model=_SMALL_TRANSFORMER,
            view=TextView(longest=40, reverse=True),
            batch=64,
            epochs=40,
            target=98.0,
            vocabulary=200,
        ),
    ),
    _cifar(
        "cifar10-resnet32",
        resnet32,
        "cifar10",
        narrow=4,
        cpu=replace(_PAPER, view=View(train=12_800, test=2_000), epochs=12, longer={}, target=0.72),
        paper=replace(_PAPER, target=0.925),
    ),
    _cifar(
        "cifar10-vgg11",
        vgg11,
        "cifar10",
        narrow=4,
        cpu=replace(_PAPER, view=View(train=12_800, test=2_000), epochs=6, longer={}, target=0.65),
        paper=_PAPER,
    ),
    _cifar(
        "cifar100-resnet18",
        resnet18,
        "cifar100",
        narrow=4,
        cpu=replace(_PAPER, view=View(train=3_200, test=1_000), batch=64, epochs=6, longer={}, target=0.1),
        paper=_PAPER,
    ),
    _cifar(
        "cifar100-resnet34",
        resnet34,
        "cifar100",
        narrow=4,
        cpu=replace(_PAPER, view=View(train=3_200, test=1_000), batch=64, epochs=4, longer={}, target=0.06),
        paper=_PAPER,
    ),
    _images(
        "imagenet-resnet50",
        "resnet50 on ImageNet",
        smoke=replace(_SMOKE, model=partial(resnet50, width=4)),
        cpu=replace(_SMALL_IMAGENET, data="imagenet", view=View(train=3_200, test=500, size=64)),
        paper=replace(_IMAGENET, data="imagenet", target=0.75),
    ),
    _images(
        "tiny20-resnet50",
        "resnet50 on 20 classes of 64×64 ImageNet pictures",
        smoke=replace(_SMOKE, model=partial(resnet50, width=4)),
        cpu=replace(_SMALL_IMAGENET, data="tiny20", target=0.3),
        paper=replace(_IMAGENET, data="tiny20", view=View(padding=8), target=0.6),
    ),
    _text(
        "multi30k-transformer",
        "the Transformer on Multi30K, German to English",
        smoke=_SMALL_TEXT,
        cpu=Scale(
            data="multi30k",
            model=_SMALL_TRANSFORMER,
            view=TextView(train=9_600, test=500),
            batch=64,
            epochs=6,
            target=10.0,
            vocabulary=4000,
        ),
        paper=Scale(data="multi30k", model=Transformer, view=TextView(), batch=64, epochs=100, vocabulary=8000),
    ),
    _images(
        "cifar10-noisy-resnet32",
        "resnet32 on cifar10 with 40 % random labels in training; the test is clean",
        smoke=replace(_UNEVEN_SMOKE, data="digits-noisy"),
        cpu=replace(_UNEVEN, data="cifar10-noisy", view=View(train=12_800), target=0.47),
    ),
    _images(
        "cifar10-longtail-resnet32",
        "resnet32 on cifar10 with class sizes falling from 5,000 to 50; the test is balanced",
        smoke=replace(_UNEVEN_SMOKE, data="digits-longtail"),
        cpu=replace(_UNEVEN, data="cifar10-longtail", target=0.31),
    ),
)
WORKLOADS: dict[str, Workload] = {row.name: row for row in _ROWS}


def workload(name: str) -> Workload:
    """The table's row of one problem.

    Args:
        name: A key of `WORKLOADS`.

    Returns:
        The row.

    Raises:
        InputError: If there is no such problem.
    """
    if name not in WORKLOADS:
        raise InputError(f"workload={name!r} is not known: choose one of {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


def scale(row: Workload, name: str) -> Scale:
    """One problem at one size.

    Args:
        row: The problem.
        name: One of `SCALES`.

    Returns:
        The scale.

    Raises:
        InputError: If there is no such scale.
    """
    if name not in row.scales:
        raise InputError(f"scale={name!r} of {row.name} is not known: choose one of {', '.join(row.scales)}")
    return row.scales[name]


def build(size: Scale, *, batch: int, seed: int, folder: Path | None = None) -> Problem:
    """Load the data and draw fresh weights; seeds torch's generator, so call it where that is restored.

    Args:
        size: The problem at one size.
        batch: Samples of a batch.
        seed: Of weights and batches.
        folder: Where the data lie; see `data.folder`.

    Returns:
        The problem.
    """
    found = data.load(size.data, folder)
    torch.manual_seed(seed)
    if isinstance(found, ImageData):
        assert isinstance(size.view, View)
        return Classification(size.model(len(found.classes)), found, size.view, batch=batch, seed=seed)
    return _translation(size, found, batch, seed)


def _translation(size: Scale, found: TextData, batch: int, seed: int) -> Translation:
    vocabulary = train_vocabulary((*found.train.source, *found.train.target), size.vocabulary)
    model = size.model(len(vocabulary))
    assert isinstance(model, Transformer)
    assert isinstance(size.view, TextView)
    return Translation(model, found, vocabulary, size.view, batch=batch, seed=seed)
