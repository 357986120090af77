"""ResNet-18 and ResNet-34 with a stem for 32×32 images, ResNet-50 with the one for ImageNet (He et al., 2016).

Four stages of 64, 128, 256 and 512 channels, the mean over pixels, one linear layer. Where a stage changes the shape,
the shortcut is a 1×1 convolution with BatchNorm (their option B). The stem is 7×7 with stride 2 and a max-pool for
ImageNet, and 3×3 without a pool for small images. In ResNet-50 the 3×3 convolution of a block carries the stride, as in
today's usual implementations; the paper put it on the 1×1 before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from fngd_bench.models.initialise import convolution, initialise


class Residual(nn.Module):
    """A branch added to a shortcut, then ReLU."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """(M, d_in, H, W) → (M, d_out, H/stride, W/stride)."""
        y: Tensor = self.branch(x)
        y += self.shortcut(x)
        out: Tensor = self.activation(y)
        return out


BlockMaker = Callable[[int, int, int], Residual]


def basic(d_in: int, width: int, stride: int) -> Residual:
    """Two 3×3 convolutions of `width` channels."""
    branch = nn.Sequential(
        convolution(d_in, width, stride=stride),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        convolution(width, width),
        nn.BatchNorm2d(width),
    )
    return Residual(branch, _shortcut(d_in, width, stride))


def bottleneck(d_in: int, width: int, stride: int) -> Residual:
    """1×1 down to `width` channels, 3×3, 1×1 up to four times as many."""
    branch = nn.Sequential(
        convolution(d_in, width, size=1),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        convolution(width, width, stride=stride),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        convolution(width, 4 * width, size=1),
        nn.BatchNorm2d(4 * width),
    )
    return Residual(branch, _shortcut(d_in, 4 * width, stride))


def _shortcut(d_in: int, d_out: int, stride: int) -> nn.Module:
    if d_in == d_out and stride == 1:
        return nn.Identity()
    return nn.Sequential(convolution(d_in, d_out, size=1, stride=stride), nn.BatchNorm2d(d_out))


def small_stem(width: int) -> nn.Sequential:
    """3×3, stride 1, no pool: for 32×32 images."""
    return nn.Sequential(convolution(3, width), nn.BatchNorm2d(width), nn.ReLU(inplace=True))


def imagenet_stem(width: int) -> nn.Sequential:
    """7×7 with stride 2 and a 3×3 max-pool with stride 2: a quarter of each side."""
    return nn.Sequential(
        convolution(3, width, size=7, stride=2),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


class ResNet(nn.Sequential):
    """A stem, four stages, a linear head."""

    def __init__(
        self,
        stem: Callable[[int], nn.Module],
        block: BlockMaker,
        blocks: Sequence[int],
        expansion: int,
        classes: int,
        width: int,
    ) -> None:
        """Build it with fresh weights.

        Args:
            stem: Makes the part from the image to `width` channels.
            block: Makes a block from channels in, width and stride.
            blocks: Blocks of each stage.
            expansion: Channels out of a block, over its width.
            classes: Classes to tell apart.
            width: Channels of the first stage; each further stage has twice as many.
        """
        stages: list[nn.Module] = []
        d_in = width
        for index, count in enumerate(blocks):
            for number in range(count):
                stride = 2 if index > 0 and number == 0 else 1
                stages.append(block(d_in, width * 2**index, stride))
                d_in = expansion * width * 2**index
        super().__init__(stem(width), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(d_in, classes))
        initialise(self)


def resnet18(classes: int, width: int = 64) -> ResNet:
    """ResNet-18 for 32×32 images."""
    return ResNet(small_stem, basic, (2, 2, 2, 2), 1, classes, width)


def resnet34(classes: int, width: int = 64) -> ResNet:
    """ResNet-34 for 32×32 images."""
    return ResNet(small_stem, basic, (3, 4, 6, 3), 1, classes, width)


def resnet50(classes: int, width: int = 64) -> ResNet:
    """ResNet-50 for ImageNet."""
    return ResNet(imagenet_stem, bottleneck, (3, 4, 6, 3), 4, classes, width)
