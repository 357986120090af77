"""ResNet-32 and ResNet-110 for 32×32 images (He et al., 2016, section 4.2).

A 3×3 stem of 16 channels, three stages of n blocks with 16, 32 and 64 channels, the mean over pixels, one linear layer:
6n + 2 weighted layers. Shortcuts have no parameters (their option A): where a stage narrows the image, every second
pixel is kept and the missing channels are zeros.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fngd_bench.models.initialise import convolution, initialise


class Shortcut(nn.Module):
    """Option A: keep every `stride`-th pixel, pad the channels with zeros on both sides."""

    def __init__(self, d_in: int, d_out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (d_out - d_in) // 2
        self.after = d_out - d_in - self.before

    def forward(self, x: Tensor) -> Tensor:
        """(M, d_in, H, W) → (M, d_out, H/stride, W/stride)."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class Block(nn.Module):
    """Two 3×3 convolutions with BatchNorm, added to their input."""

    def __init__(self, d_in: int, d_out: int, stride: int) -> None:
        super().__init__()
        self.convolution1 = convolution(d_in, d_out, stride=stride)
        self.norm1 = nn.BatchNorm2d(d_out)
        self.convolution2 = convolution(d_out, d_out)
        self.norm2 = nn.BatchNorm2d(d_out)
        self.shortcut = nn.Identity() if d_in == d_out else Shortcut(d_in, d_out, stride)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """(M, d_in, H, W) → (M, d_out, H/stride, W/stride)."""
        y: Tensor = self.activation(self.norm1(self.convolution1(x)))
        y = self.norm2(self.convolution2(y))
        y += self.shortcut(x)
        out: Tensor = self.activation(y)
        return out


class CifarResNet(nn.Sequential):
    """6n + 2 layers for small images."""

    def __init__(self, blocks: int, classes: int, width: int = 16) -> None:
        """Build it with fresh weights.

        Args:
            blocks: Blocks of a stage, n.
            classes: Classes to tell apart.
            width: Channels of the first stage.
        """
        super().__init__(
            convolution(3, width),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            _stage(blocks, width, width, stride=1),
            _stage(blocks, width, 2 * width, stride=2),
            _stage(blocks, 2 * width, 4 * width, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, classes),
        )
        initialise(self)


def _stage(blocks: int, d_in: int, d_out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(Block(d_in, d_out, stride), *(Block(d_out, d_out, 1) for _ in range(blocks - 1)))


def resnet32(classes: int, width: int = 16) -> CifarResNet:
    """ResNet-32: five blocks a stage."""
    return CifarResNet(5, classes, width)


def resnet110(classes: int) -> CifarResNet:
    """ResNet-110: eighteen blocks a stage."""
    return CifarResNet(18, classes)
