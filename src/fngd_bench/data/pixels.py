"""Mean and standard deviation of pixels, exactly.

A byte has 256 values, so counting them says all, and integers lose nothing however many there are. Adding 50 million
squares up in float32 is off in the second digit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

BLOCK = 500
"""Images counted at a time: counting widens bytes to integers of eight."""


class Statistics(NamedTuple):
    """Of pixels in [0, 1], a number a channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def statistics(images: Tensor) -> Statistics:
    """Mean and standard deviation of each channel.

    Args:
        images: Pixels, uint8 (N, channels, size, size).

    Returns:
        Those of the pixels divided by 255.
    """
    pairs = [_channel(images[:, channel]) for channel in range(images.shape[1])]
    return Statistics(mean=tuple(mean for mean, _ in pairs), std=tuple(std for _, std in pairs))


def _channel(pixels: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of the pixels divided by 255."""
    counts = sum(np.bincount(block.numpy().ravel(), minlength=256) for block in pixels.split(BLOCK))
    values = np.arange(256)
    total, squares = int(counts @ values), int(counts @ values**2)
    count = pixels.numel()
    return total / (255 * count), math.sqrt(count * squares - total**2) / (255 * count)
