"""Images in, classes out: cross-entropy, accuracy, crops and flips."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fngd_bench.data.augment import crops, cut, normalise
from fngd_bench.data.types import ImageData, Images, MemoryImages
from fngd_bench.problems.base import Batch, Problem, Score

TEST_BATCH = 500


@dataclass(frozen=True, kw_only=True)
class View:
    """How a data set is looked at: which part of it, at which size."""

    train: int | None = None
    """Training images that are used, the first of a fixed shuffle; all by default."""
    test: int | None = None
    size: int | None = None
    """Images are resized to this side; as they are by default."""
    channels: int | None = None
    """Grey images are repeated to this many channels."""
    padding: int = 4
    """Pixels around an image that a crop may move into; 0 for no crop and no flip."""


class Classification(Problem):
    """A classifier of images."""

    metric = "accuracy"

    def __init__(self, model: nn.Module, data: ImageData, view: View, *, batch: int, seed: int) -> None:
        """Take the part of the data that the view shows.

        Args:
            model: Scores (M, classes) from images (M, channels, size, size).
            data: The data set.
            view: What is used of it.
            batch: Samples of a batch.
            seed: Of the batches.
        """
        self.data = data
        self.view = view
        self.train = _part(data.train, view.train, view)
        self.test = _part(data.test, view.test, view)
        super().__init__(model, len(self.train), batch, seed)

    def prepare(self, chosen: Tensor, random: torch.Generator, part: slice) -> Batch:
        """Images cropped and flipped by chance, and their classes."""
        images = self.train.take(chosen[part])
        if padding := self.view.padding:
            images = cut(images, padding, crops(len(chosen), padding, random).part(part))
        return Batch((normalise(images, self.data.mean, self.data.std),), self.train.labels[chosen[part]])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy."""
        return F.cross_entropy(model(*batch.inputs), batch.targets)

    def evaluate(self) -> Score:
        """Mean cross-entropy and accuracy on the test images, as they are."""
        loss, right = 0.0, 0
        for chosen in torch.arange(len(self.test)).split(TEST_BATCH):
            labels = self.here(self.test.labels[chosen])
            scores = self.model(self.here(normalise(self.test.take(chosen), self.data.mean, self.data.std)))
            loss += float(F.cross_entropy(scores, labels, reduction="sum"))
            right += int((scores.argmax(1) == labels).sum())
        return Score(loss / len(self.test), right / len(self.test))


def _part(images: Images, count: int | None, view: View) -> Images:
    """The first `count` images of a shuffle that is the same for every run, at the view's size and colours."""
    if count is None and view.size is None and view.channels is None:
        return images
    shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen = shuffled[: len(images) if count is None else count]
    pixels = torch.cat([_resized(images.take(part), view.size) for part in chosen.split(TEST_BATCH)])
    if view.channels is not None:
        pixels = pixels.expand(-1, view.channels, -1, -1).contiguous()
    return MemoryImages(pixels, images.labels[chosen])


def _resized(pixels: Tensor, size: int | None) -> Tensor:
    """Images of side `size`, uint8 as they were."""
    if size is None or size == pixels.shape[-1]:
        return pixels
    smooth = F.interpolate(pixels.float(), size=(size, size), mode="bilinear", antialias=True)
    return smooth.round().clamp(0, 255).to(torch.uint8)
