"""VGG-11 with BatchNorm for 32×32 images (Simonyan and Zisserman, 2015, configuration A).

Eight 3×3 convolutions with bias, BatchNorm and ReLU after each, five max-pools down to one pixel, and one linear layer
from its 512 channels to the classes in place of the three wide ones meant for 224×224 images.
"""

from __future__ import annotations

from torch import nn

from fngd_bench.models.initialise import initialise

_STAGES = ((1,), (2,), (4, 4), (8, 8), (8, 8))
"""Channels of the convolutions between two pools, over those of the first."""


class VGG(nn.Sequential):
    """Stages of convolutions, each ended by a 2×2 max-pool, then a linear head."""

    def __init__(self, stages: tuple[tuple[int, ...], ...], classes: int, width: int) -> None:
        """Build it with fresh weights.

        Args:
            stages: Channels of the convolutions between two pools, over those of the first.
            classes: Classes to tell apart.
            width: Channels of the first convolution.
        """
        layers: list[nn.Module] = []
        d_in = 3
        for stage in stages:
            for d_out in (width * multiple for multiple in stage):
                layers += [nn.Conv2d(d_in, d_out, 3, padding=1), nn.BatchNorm2d(d_out), nn.ReLU(inplace=True)]
                d_in = d_out
            layers.append(nn.MaxPool2d(2))
        # At 32×32 one pixel is left and the mean is the identity; it lets larger images through.
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(d_in, classes))
        initialise(self)


def vgg11(classes: int, width: int = 64) -> VGG:
    """VGG-11 with BatchNorm."""
    return VGG(_STAGES, classes, width)
