"""Images that lie in files and are decoded when they are asked for, several at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fngd_bench.data.types import Images
from fngd_bench.errors import InputError


@final
class FolderImages(Images):
    """Images in files. Paths are plain strings: a million `Path` objects would take half a gigabyte."""

    def __init__(self, paths: Sequence[str], labels: Tensor, size: int) -> None:
        """Keep the paths; no file is opened.

        Args:
            paths: A file each, N of them.
            labels: Classes, int64 (N,).
            size: Side of the images that `take` returns.

        Raises:
            InputError: If there is not one label for each path, or `size` is below 1.
        """
        super().__init__(labels)
        if len(paths) != len(labels):
            raise InputError(f"there are {len(paths)} files and {len(labels)} labels; each file needs one")
        if size < 1:
            raise InputError(f"size={size} must be at least 1")
        self.paths = paths
        self.size = size

    def take(self, indices: Tensor) -> Tensor:
        """Decode some of the images, uint8 (M, 3, size, size). A file that does not decode is an InputError."""
        paths = [self.paths[index] for index in indices.tolist()]
        pixels = np.empty((len(paths), self.size, self.size, 3), dtype=np.uint8)
        # Pillow lets go of Python's lock while it decodes, so threads are enough.
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for image, decoded in zip(pixels, pool.map(partial(decode, size=self.size), paths), strict=True):
                image[:] = decoded
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def decode(path: str, size: int) -> NDArray[np.uint8]:
    """An image as pixels: its shorter side brought to `size`, then the centre.

    Args:
        path: The file.
        size: Side of the result.

    Returns:
        Red, green and blue, uint8 (size, size, 3).

    Raises:
        InputError: If it does not decode.
    """
    try:
        with Image.open(path) as image:
            return np.asarray(_centre(_shrink(image.convert("RGB"), size), size))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} does not decode as an image: {error}; put a whole copy of it there") from error


def _shrink(image: Image.Image, size: int) -> Image.Image:
    """The image with its shorter side `size` long."""
    shorter = min(image.size)
    if shorter == size:
        return image
    width, height = (max(size, round(side * size / shorter)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)


def _centre(image: Image.Image, size: int) -> Image.Image:
    left, top = ((side - size) // 2 for side in image.size)
    return image.crop((left, top, left + size, top + size))
