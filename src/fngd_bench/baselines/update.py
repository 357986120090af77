"""SGD's own update on gradients that were replaced: torch's kernel, momentum and weight decay, and nothing else.

While the update runs, `p.grad` is the direction; before and after, it is the gradient that the user sees.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fngd_bench.baselines.rescale import Directions

_sgd_step: Callable[[torch.optim.SGD], None] = inspect.unwrap(
    torch.optim.SGD.step, stop=lambda step: not getattr(step, "hooked", False)
)
"""SGD's step without torch's step hooks: those run around the subclass's step, and must not run twice."""


def update(optimizer: torch.optim.SGD, directions: Directions) -> None:
    """Take SGD's step along the directions, and along the gradients of all parameters that have no direction.

    Args:
        optimizer: Whose parameters, settings and momentum buffers they are.
        directions: Parameters, and what stands in for their gradients.
    """
    _start_momentum(optimizer)
    with _replaced(directions):
        _sgd_step(optimizer)


def _start_momentum(optimizer: torch.optim.SGD) -> None:
    """Give a parameter whose first gradient is here a buffer of zeros, which changes nothing: dampening is 0.

    torch's fused SGD takes no group in which some parameters have a buffer and others do not (seen in 2.13).
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            if group["momentum"] != 0 and p.grad is not None and optimizer.state[p].get("momentum_buffer") is None:
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)


@contextmanager
def _replaced(directions: Directions) -> Iterator[None]:
    """Inside, the parameters' gradients are the directions; afterwards they are the user's again."""
    kept = [(p, p.grad) for p, _ in directions]
    try:
        for p, v in directions:
            p.grad = v
        yield
    finally:
        for p, gradient in kept:
            p.grad = gradient
