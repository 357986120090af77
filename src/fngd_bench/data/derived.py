"""Data sets made of others, to train where samples should not all count the same: wrong labels, rare classes.

The files are those of the other data set, and so is the test part: clean, and balanced where that is. What is changed
in the training part is a part of the data set's definition; no run's seed changes it.

Noisy: of a fixed 40 % of the training images the class is drawn anew, uniformly over all classes. By chance a tenth of
these draws (of ten classes) is the true class: of the 50,000 labels of CIFAR-10, 17,986 are wrong.
Long-tailed: class k of C keeps its first n · 100^(−k/(C−1)) images, in the order of the files (Cui et al., 2019): for
CIFAR-10, with n = 5,000, that is 5000, 2997, 1797, 1077, 646, 387, 232, 139, 83 and 50, together 12,408.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch

from fngd_bench.data.dataset import DataSet, Facts
from fngd_bench.data.pixels import statistics
from fngd_bench.data.progress import Display
from fngd_bench.data.types import ImageData, MemoryImages

NOISE = 0.4
"""Share of the training labels that are drawn anew."""
NOISE_SEED = 40
"""Not the one by which a view shuffles: the images it shows first would be those with random labels."""
IMBALANCE = 100
"""The first class has this many times the images of the last."""


@final
@dataclass(frozen=True)
class Derived(DataSet):
    """Another data set of images with its training part changed."""

    facts: Facts
    source: DataSet
    change: Callable[[ImageData], ImageData]

    @property
    def origin(self) -> str:
        """The data set that the files are of."""
        return self.source.origin

    def absent(self, folder: Path) -> Path | None:
        """The first of the other data set's files that is not there."""
        return self.source.absent(folder)

    def read(self, folder: Path) -> ImageData:
        """The other data set, changed."""
        data = self.source.read(folder)
        assert isinstance(data, ImageData)
        return replace(self.change(data), name=self.facts.name)

    def verify(self, folder: Path, display: Display) -> str:
        """Check the other data set's files."""
        return self.source.verify(folder, display)

    def fetch(self, folder: Path, display: Display) -> str:
        """Get the other data set's files."""
        return self.source.fetch(folder, display)


def noisy(data: ImageData) -> ImageData:
    """The data with a part of the training labels drawn anew.

    Args:
        data: The data; its images are shared, not copied.

    Returns:
        Other training labels; all else as it was.
    """
    assert isinstance(data.train, MemoryImages)
    labels, random = data.train.labels.clone(), torch.Generator().manual_seed(NOISE_SEED)
    chosen = torch.randperm(len(labels), generator=random)[: round(NOISE * len(labels))]
    labels[chosen] = torch.randint(len(data.classes), chosen.shape, generator=random)
    return replace(data, train=MemoryImages(data.train.images, labels))


def long_tailed(data: ImageData) -> ImageData:
    """The data with fewer and fewer training images from class to class, the first of each.

    Args:
        data: The data.

    Returns:
        A part of the training images, and their mean and deviation; the test images as they were.
    """
    labels, last = data.train.labels, len(data.classes) - 1
    members = [(labels == k).nonzero().squeeze(1) for k in range(last + 1)]
    parts = [found[: round(len(found) * IMBALANCE ** (-k / last))] for k, found in enumerate(members)]
    kept = torch.cat(parts).sort().values
    train = MemoryImages(data.train.take(kept), labels[kept])
    mean, std = statistics(train.images)
    return replace(data, train=train, mean=mean, std=std)
