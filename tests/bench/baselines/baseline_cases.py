"""Small models, data and steps that the tests of the baselines share."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fngd_bench.baselines import KFAC, Eva

METHODS = {"kfac": KFAC, "eva": Eva}
PERIODS = {"kfac": {"statistics_every": 2, "inverse_every": 4}, "eva": {}}
"""Short enough for a few steps to meet every kind of step."""


def make(method, model, params=None, **kwargs):
    arguments = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3, "damping": 0.1, **PERIODS[method], **kwargs}
    return METHODS[method](model, params, **arguments)


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def images(dtype=torch.float32):
    """Convolutions, BatchNorm, an in-place ReLU and a linear layer, for images of 2×6×6."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, 3, stride=2, bias=False),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(12, 3),
    ).to(dtype)


def data(seed=0, size=6, shape=(5,), dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, *shape, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(3, (size,), generator=generator)


def differentiate(model, x, y):
    loss = cross_entropy(model(x), y)
    loss.backward()
    return loss


def step(model, optimizer, seed=0, **kwargs):
    optimizer.zero_grad()
    loss = differentiate(model, *data(seed, **kwargs))
    optimizer.step()
    return loss.item()


def same(model, other):
    return all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))
