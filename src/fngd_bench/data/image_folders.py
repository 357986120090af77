"""Data sets in ImageNet's layout: `{train,val}/CLASS/*.JPEG`. Classes are the folders' names, in alphabetical order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import torch

from fngd_bench.data.checksums import unreadable
from fngd_bench.data.dataset import DataSet, Facts
from fngd_bench.data.jpegs import FolderImages
from fngd_bench.data.pixels import Statistics, statistics
from fngd_bench.data.progress import Display
from fngd_bench.data.types import ImageData, MemoryImages
from fngd_bench.errors import InputError

SPLITS = ("train", "val")
BLOCK = 256
"""Images decoded at a time when all are checked."""


class Count(NamedTuple):
    """How many there must be."""

    classes: int
    train: int
    val: int


@final
@dataclass(frozen=True, kw_only=True)
class ImageFolders(DataSet):
    """A data set in that layout, which the user puts there."""

    facts: Facts
    root: str
    count: Count
    size: int
    """Side of the images."""
    how: str
    """How the user gets the files."""
    known: Statistics | None
    """Of the pixels; None if the images are to lie in memory, where they are computed."""

    def absent(self, folder: Path) -> Path | None:
        """The folder of a split that is not there."""
        paths = (folder / self.root / split for split in SPLITS)
        return next((path for path in paths if not path.is_dir()), None)

    def read(self, folder: Path) -> ImageData:
        """All images in memory if their statistics are not known, else decoded on demand."""
        classes, (train, test) = self._listing(folder)
        if self.known is not None:
            mean, std = self.known
            return ImageData(name=self.facts.name, classes=classes, train=train, test=test, mean=mean, std=std)
        held, tested = in_memory(train), in_memory(test)
        mean, std = statistics(held.images)
        return ImageData(name=self.facts.name, classes=classes, train=held, test=tested, mean=mean, std=std)

    def verify(self, folder: Path, display: Display) -> str:
        """Count the images and decode every one."""
        _, splits = self._listing(folder)
        total, done = sum(map(len, splits)), 0
        with display(self.facts.name) as watch:
            for split in splits:
                for indices in torch.arange(len(split)).split(BLOCK):
                    split.take(indices)
                    done += len(indices)
                    watch(done, total)
        return f"{total:,} images decode; there is no published checksum"

    def fetch(self, folder: Path, display: Display) -> str:  # noqa: ARG002
        """Say that it is there, or how to get it.

        Raises:
            InputError: If it is not there.
        """
        place = folder / self.root
        if self.absent(folder) is None:
            return f"is there already, in {place}"
        name, layout = self.facts.name, f"{place}/{{train,val}}/CLASS/*.JPEG"
        raise InputError(f"{name} cannot be fetched: {self.how}; put the images into {layout}")

    def _listing(self, folder: Path) -> tuple[tuple[str, ...], tuple[FolderImages, FolderImages]]:
        """The classes and the two splits, counted."""
        place, wanted = folder / self.root, self.count
        classes = _names(place / "train")
        train, test = (listing(place / split, classes, self.size) for split in SPLITS)
        found = Count(len(classes), len(train), len(test))
        if found != wanted:
            raise InputError(f"{place} holds {_text(found)}; there must be {_text(wanted)}: {self.how}")
        return classes, (train, test)


def _text(count: Count) -> str:
    return f"{count.classes:,} classes, {count.train:,} images in train and {count.val:,} in val"


def listing(folder: Path, classes: Sequence[str], size: int) -> FolderImages:
    """The images of a split.

    Args:
        folder: It holds a folder for each class.
        classes: Their names.
        size: Side of the images.

    Returns:
        The images, class by class.

    Raises:
        InputError: If the folders are not those of the classes.
    """
    found = _names(folder)
    if odd := set(found) ^ set(classes):
        raise InputError(f"{folder}: class {min(odd)} is in one of train and val only; both must have the same folders")
    paths = [[f"{folder}/{name}/{file}" for file in _images(folder / name)] for name in classes]
    labels = [label for label, files in enumerate(paths) for _ in files]
    return FolderImages([path for files in paths for path in files], torch.tensor(labels, dtype=torch.int64), size)


def in_memory(images: FolderImages) -> MemoryImages:
    """Decode all images."""
    return MemoryImages(images.take(torch.arange(len(images))), images.labels)


def _names(folder: Path) -> tuple[str, ...]:
    """Names of the folders inside, sorted."""
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted(entry.name for entry in entries if entry.is_dir()))
    except OSError as error:
        raise InputError(unreadable(folder, error)) from error


def _images(folder: Path) -> list[str]:
    """Names of the images inside, sorted."""
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(".JPEG"))  # noqa: PTH208 - a million Paths
    except OSError as error:
        raise InputError(unreadable(folder, error)) from error
