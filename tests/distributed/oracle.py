"""Training on several ranks, slow and obvious, in one process, in float64 and without a line of the library."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reference import alone, coefficients, damping

ALPHA, RATE, MOMENTUM = 0.01, 0.3, 0.9


class Network(nn.Module):
    """Convolution, a layer that is used twice, and a head; `spare` is never used."""

    def __init__(self, spare=False):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 2)
        self.twice = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        if spare:
            self.spare = nn.Linear(4, 4)

    def forward(self, x):
        x = torch.tanh(self.conv(x)).flatten(1)
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        return self.head(x)


LAYERS = ("conv", "twice", "head")


def network(**kwargs):
    torch.manual_seed(0)
    return Network(**kwargs).double()


def batch(step, rank, size=4, micro=0):
    generator = torch.Generator().manual_seed(1000 * micro + 100 * step + rank)
    x = torch.randn(size, 1, 3, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (size,), generator=generator)


def batches(steps, ranks, sizes=None, micros=1):
    """batches[step][rank][micro]; `sizes` says how large the batches of each rank are."""
    sizes = sizes or [4] * ranks
    return [
        [[batch(step, rank, sizes[rank], micro) for micro in range(micros)] for rank in range(ranks)]
        for step in range(steps)
    ]


def trained(model, data, derive_steps):
    """The model after these batches, and c̃ of each layer; a step whose gradient is not finite is not taken.

    Each rank weights its own samples, gradients are averaged over ranks and added up over micro-batches. c̃ is the mean
    over all ranks and steps, of the longest batches.
    """
    model = copy.deepcopy(model)
    layers = {name: list(model.get_submodule(name).parameters()) for name in LAYERS}
    derived = {name: [] for name in LAYERS}
    shared = None
    buffers = {}
    taken = 0
    for ranks in data:
        if taken == derive_steps and shared is None:
            shared = {name: _longest(found) for name, found in derived.items()}
        sums = {p: torch.zeros_like(p) for parameters in layers.values() for p in parameters}
        for x, y in [one for micros in ranks for one in micros]:
            for name, parameters in layers.items():
                U = alone(model, cross_entropy, [x], y, parameters)
                if U.isfinite().all():
                    c = coefficients(U, damping(U, ALPHA)) if shared is None else _fitted(shared[name], len(x))
                    derived[name].append(c)
                pieces = (U @ c / len(x) / len(ranks)).split([p.numel() for p in parameters])
                for p, piece in zip(parameters, pieces, strict=True):
                    sums[p] += piece.view_as(p)
        if not all(g.isfinite().all() for g in sums.values()):
            continue
        taken += 1
        for p, g in sums.items():
            buffers[p] = MOMENTUM * buffers[p] + g if p in buffers else g
            p.data -= RATE * buffers[p]
    return model, shared


def _longest(found):
    longest = max(len(c) for c in found)
    return torch.stack([c for c in found if len(c) == longest]).mean(0)


def _fitted(c, M):
    return c[:M] * (c.mean() / c[:M].mean())
