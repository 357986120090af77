"""CIFAR-10 and CIFAR-100 from their binary files (Krizhevsky, 2009).

A record is a byte a label, then 1,024 red, 1,024 green and 1,024 blue bytes, row by row. CIFAR-10 has one label,
CIFAR-100 two: the coarse one of 20 and the fine one of 100, which is the one that is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from fngd_bench.data import checksums, published
from fngd_bench.data.archive import unpack
from fngd_bench.data.checksums import File
from fngd_bench.data.dataset import DataSet, Facts
from fngd_bench.data.download import Remote, download
from fngd_bench.data.pixels import statistics
from fngd_bench.data.progress import Display
from fngd_bench.data.types import ImageData, MemoryImages

SIZE = 32
PIXELS = 3 * SIZE * SIZE


@final
@dataclass(frozen=True, kw_only=True)
class Cifar(DataSet):
    """One of the two."""

    facts: Facts
    remote: Remote
    root: str
    """The folder of the files."""
    train: tuple[File, ...]
    test: tuple[File, ...]
    label_bytes: int
    """Before the pixels; the last is the class."""
    classes: tuple[str, ...]

    def absent(self, folder: Path) -> Path | None:
        """The first file that is not there."""
        return published.first_absent(folder, self._files())

    def read(self, folder: Path) -> ImageData:
        """All images in memory, each file held against its checksum."""
        train, test = (self._images(folder, files) for files in (self.train, self.test))
        mean, std = statistics(train.images)
        return ImageData(name=self.facts.name, classes=self.classes, train=train, test=test, mean=mean, std=std)

    def verify(self, folder: Path, display: Display) -> str:
        """Hold every file against its checksum."""
        return published.verify(folder, self._files(), self.facts.name, display)

    def fetch(self, folder: Path, display: Display) -> str:
        """Download the archive, unless the files are there and whole."""
        if published.whole(folder, self._files()):
            return "is there already, and whole"
        archive = folder / self.remote.url.rsplit("/", 1)[1]
        download(self.remote, archive, display)
        unpack(archive, self.root, lambda scratch: self._check(scratch, folder))
        return f"is in {folder / self.root}"

    def _files(self) -> tuple[File, ...]:
        return self.train + self.test

    def _check(self, scratch: Path, folder: Path) -> None:
        for file in self._files():
            checksums.read_checked(scratch, file, published.anew(self.facts.name, folder))

    def _images(self, folder: Path, files: Sequence[File]) -> MemoryImages:
        way_out = published.anew(self.facts.name, folder)
        contents = [checksums.read_checked(folder, file, way_out) for file in files]
        parts = [records(content, self.label_bytes) for content in contents]
        return MemoryImages(torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts]))


def records(content: bytes, label_bytes: int) -> tuple[Tensor, Tensor]:
    """The records of a binary file.

    Args:
        content: The file.
        label_bytes: Labels of a record; the last one is the class.

    Returns:
        Images, uint8 (N, 3, 32, 32), and classes, int64 (N,).
    """
    table = np.frombuffer(content, dtype=np.uint8).reshape(-1, label_bytes + PIXELS)
    images = torch.tensor(table[:, label_bytes:]).view(-1, 3, SIZE, SIZE)
    return images, torch.tensor(table[:, label_bytes - 1], dtype=torch.int64)
