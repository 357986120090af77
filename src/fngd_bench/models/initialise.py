"""How fresh weights are drawn, for all convolutional networks here (He et al., 2015)."""

from __future__ import annotations

from torch import nn


def initialise(model: nn.Module) -> None:
    """Draw convolutions from He's normal distribution, in place; linear and norm layers keep torch's own start.

    Args:
        model: The network.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def convolution(d_in: int, d_out: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image's size but for its stride, without bias since BatchNorm follows.

    Args:
        d_in: Channels in.
        d_out: Channels out.
        size: Side of the kernel, odd.
        stride: Step between output pixels.

    Returns:
        The layer.
    """
    return nn.Conv2d(d_in, d_out, size, stride=stride, padding=size // 2, bias=False)
