"""scikit-learn's digits: 1,797 images of 8×8 grey pixels, ten classes. They come with the package."""

from __future__ import annotations

import torch

from fngd_bench.data.pixels import statistics
from fngd_bench.data.types import ImageData, MemoryImages

TEST = 360
"""Images held back."""
SPLIT_SEED = 0
"""Of the split; no run's seed changes which images are held back."""
SCALE = 15
"""Grey values 0 … 16 become bytes 0 … 240."""


def digits() -> ImageData:
    """The digits, 1,437 to train on and 360 held back."""
    from sklearn.datasets import load_digits  # slow to import, and the other data sets do without

    bunch = load_digits()
    images = torch.tensor(bunch.images * SCALE).to(torch.uint8).unsqueeze(1)
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    test, train = order[:TEST], order[TEST:]
    mean, std = statistics(images[train])
    return ImageData(
        name="digits",
        classes=tuple("0123456789"),
        train=MemoryImages(images[train], labels[train]),
        test=MemoryImages(images[test], labels[test]),
        mean=mean,
        std=std,
    )
