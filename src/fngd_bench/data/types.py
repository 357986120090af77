"""What a data set hands to the training loop: images with classes, or pairs of sentences.

Pixels stay bytes, as they are in the files, until a batch is made of them (`augment`). M samples, N in all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fngd_bench.errors import InputError


class Images(ABC):
    """Square images of one size, and the class of each."""

    labels: Tensor
    """Classes, int64 (N,)."""

    def __init__(self, labels: Tensor) -> None:
        """Check and keep the classes.

        Args:
            labels: Classes, int64 (N,).

        Raises:
            InputError: If they are not int64 (N,).
        """
        if labels.dtype != torch.int64 or labels.dim() != 1:
            raise InputError(f"labels are {labels.dtype} {tuple(labels.shape)}; they must be int64 (N,)")
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def take(self, indices: Tensor) -> Tensor:
        """Some of the images.

        Args:
            indices: Which, int64 (M,).

        Returns:
            A new tensor, uint8 (M, channels, size, size).
        """


@final
class MemoryImages(Images):
    """Images that lie in memory."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        """Check and keep both.

        Args:
            images: Pixels, uint8 (N, channels, size, size).
            labels: Classes, int64 (N,).

        Raises:
            InputError: If the images are of another form, or there is not one label for each.
        """
        super().__init__(labels)
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[2] != images.shape[3]:
            form = f"{images.dtype} {tuple(images.shape)}"
            raise InputError(f"images are {form}; they must be uint8 (N, channels, size, size)")
        if len(images) != len(labels):
            raise InputError(f"there are {len(images)} images and {len(labels)} labels; each image needs one")
        self.images = images

    def take(self, indices: Tensor) -> Tensor:
        """Copies of some of the images, uint8 (M, channels, size, size)."""
        return self.images.index_select(0, indices)  # twenty times as fast as indexing


@dataclass(frozen=True, kw_only=True)
class ImageData:
    """A data set of images for classification."""

    name: str
    classes: tuple[str, ...]
    """The name of each class; a label is a position in here."""
    train: Images
    test: Images
    mean: tuple[float, ...]
    """Of the training pixels in [0, 1], a number a channel."""
    std: tuple[float, ...]
    """The same pixels' standard deviation."""

    def __post_init__(self) -> None:
        for labels in (self.train.labels, self.test.labels):
            if len(labels) == 0 or labels.min() < 0 or labels.max() >= len(self.classes):
                raise InputError(f"{self.name}: labels must be there and lie in 0 … {len(self.classes) - 1}")
        if len(self.mean) != len(self.std) or not all(deviation > 0 for deviation in self.std):
            raise InputError(f"{self.name}: mean={self.mean} and std={self.std} need one number a channel, std above 0")


@dataclass(frozen=True)
class Sentences:
    """Sentences and their translations, in the same order."""

    source: tuple[str, ...]
    target: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise InputError(f"{len(self.source)} source and {len(self.target)} target sentences; they must be pairs")

    def __len__(self) -> int:
        return len(self.source)

    def reversed(self) -> Sentences:
        """The same pairs, to be translated the other way."""
        return Sentences(self.target, self.source)


@dataclass(frozen=True, kw_only=True)
class TextData:
    """A data set for translation."""

    name: str
    source_language: str
    target_language: str
    train: Sentences
    validation: Sentences
    test: Sentences

    def reversed(self) -> TextData:
        """The same data, to be translated the other way."""
        return TextData(
            name=self.name,
            source_language=self.target_language,
            target_language=self.source_language,
            train=self.train.reversed(),
            validation=self.validation.reversed(),
            test=self.test.reversed(),
        )


Data = ImageData | TextData
"""Whatever `load` returns."""
