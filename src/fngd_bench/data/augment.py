"""From bytes to what the network eats, a whole batch at a time: random crop and flip, then normalisation.

No loop over samples. A pixel of the result comes from one place of the padded image; the places of all pixels are one
table of indices, and one `gather` moves every byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Crops(NamedTuple):
    """Where the window of each image of a batch lies, and whether it is mirrored, (M, 1) each."""

    down: Tensor
    right: Tensor
    mirrored: Tensor

    def part(self, part: slice) -> Crops:
        """Those of some of the images."""
        return Crops(self.down[part], self.right[part], self.mirrored[part])


def crops(M: int, padding: int, generator: torch.Generator) -> Crops:
    """Draw windows for a batch.

    Args:
        M: Images of the whole batch.
        padding: Width of the border, 0 or more; a window is drawn from all (2·padding + 1)² places.
        generator: Of the draws: M rows, then M columns, then M coins.

    Returns:
        The windows.
    """
    down, right = (torch.randint(2 * padding + 1, (M, 1), generator=generator) for _ in range(2))
    return Crops(down, right, torch.randint(2, (M, 1), generator=generator, dtype=torch.bool))


def crop_and_flip(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Put a black border around each image, cut a window of the old size out, and mirror every other one left to right.

    Args:
        images: Pixels, uint8 (M, channels, H, W).
        padding: Width of the border.
        generator: Of the draws, see `crops`.

    Returns:
        New pixels of the same form.
    """
    return cut(images, padding, crops(len(images), padding, generator))


def cut(images: Tensor, padding: int, drawn: Crops) -> Tensor:
    """Cut windows out of images with a black border around them, and mirror some.

    Args:
        images: Pixels, uint8 (M, channels, H, W).
        padding: Width of the border.
        drawn: A window for each image.

    Returns:
        New pixels of the same form.
    """
    M, channels, H, W = images.shape
    down, right, mirrored = drawn
    straight = torch.arange(W)
    rows = down + torch.arange(H)  # (M, H)
    columns = right + torch.where(mirrored, straight.flip(0), straight)  # (M, W)
    places = rows.unsqueeze(2) * (W + 2 * padding) + columns.unsqueeze(1)  # (M, H, W)
    index = places.view(M, 1, H * W).expand(-1, channels, -1).to(images.device)
    padded = F.pad(images, (padding,) * 4)
    return padded.flatten(2).gather(2, index).view(M, channels, H, W)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Pixels of mean 0 and variance 1: (p/255 − mean)/std.

    Args:
        images: Pixels, uint8 (M, channels, H, W).
        mean: Of pixels in [0, 1], a number a channel.
        std: Their standard deviation.

    Returns:
        New numbers, float32 (M, channels, H, W).
    """
    pairs = list(zip(mean, std, strict=True))
    scale, shift = (
        torch.tensor(numbers, device=images.device).view(-1, 1, 1)
        for numbers in ([1 / (255 * s) for _, s in pairs], [-m / s for m, s in pairs])
    )
    return images.to(torch.float32).mul_(scale).add_(shift)
