"""A stack of fully connected layers of one width: a network that grows in width and depth and in nothing else."""

from __future__ import annotations

from torch import nn


def stack(width: int, depth: int) -> nn.Sequential:
    """A multilayer perceptron whose input, hidden layers and output have one width, with ReLU between the layers.

    Args:
        width: Units of every layer, D.
        depth: Layers with weights.

    Returns:
        The network, with torch's own fresh weights.
    """
    hidden = [module for _ in range(depth - 1) for module in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, width))
