"""A small network with BatchNorm for scikit-learn's 8×8 digits: the demo's, and quick enough for tests."""

from __future__ import annotations

from torch import nn

from fngd_bench.models.initialise import convolution, initialise


def small_cnn(classes: int) -> nn.Sequential:
    """Three 3×3 convolutions of 32, 64 and 64 channels, one max-pool, the mean over pixels, one linear layer."""
    model = nn.Sequential(
        convolution(1, 32),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        convolution(32, 64),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        convolution(64, 64),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )
    initialise(model)
    return model
