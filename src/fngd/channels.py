"""Images turned to channels last, and back, by a kernel of torch's that is quicker at it than its copy.

On a CPU torch copies from one layout to the other number by number. `native_channel_shuffle` transposes the matrix of
groups × channels that a pixel holds, in the registers of the processor: seen as one pixel with all of its numbers, an
image is such a matrix, of channels × pixels or of pixels × channels.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


def turned(images: Tensor) -> Tensor:
    """A copy with the channels last: (n, channels, *space), contiguous, to the same shape with other strides."""
    return seen_as_turned(_transposed(images, images.shape[1]), images.shape)


def turned_back(images: Tensor) -> Tensor:
    """A contiguous copy of images whose channels are last."""
    return _transposed(images, math.prod(images.shape[2:])).view(images.shape)


def seen_as_turned(numbers: Tensor, shape: torch.Size) -> Tensor:
    """Images with their channels last, (n, channels, *space), made of numbers in that order."""
    return numbers.as_strided(shape, _channels_last(shape))


@lru_cache(maxsize=4096)  # between large kernels, to look it up costs less than to work it out again
def _channels_last(shape: torch.Size) -> tuple[int, ...]:
    """The strides of contiguous images with their channels last."""
    _, channels, *space = shape
    return channels * math.prod(space), 1, *(channels * math.prod(space[axis + 1 :]) for axis in range(len(space)))


def _transposed(images: Tensor, rows: int) -> Tensor:
    """The numbers of each image, transposed from rows × columns to columns × rows: (n, entries, 1, 1)."""
    n, entries = images.shape[0], math.prod(images.shape[1:])
    one_pixel = images.as_strided((n, entries, 1, 1), (entries, 1, entries, entries))
    return torch.native_channel_shuffle(one_pixel, rows) if n and entries else one_pixel.clone()
