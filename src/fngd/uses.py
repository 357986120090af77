"""What a Gram matrix is made of, the uses of one weight in a batch, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fngd.operations import Operation, Samples, gram_dtype, sides
from fngd.planner import Shape
from fngd.scratch import Scratch


class Use(NamedTuple):
    """One use of a weight in a forward pass: what was computed, its input x and its output gradient z."""

    operation: Operation
    x: Tensor
    z: Tensor
    weight: Tensor

    def inputs(self, scratch: Scratch) -> Tensor:
        """X in canonical form and in the dtype of the Gram matrix."""
        readable, _ = self.operation.readable(self.x, self.weight, None, scratch)
        return self.operation.inputs(readable, slice(0, math.prod(self.weight.shape[1:])), scratch)

    def outputs(self) -> Tensor:
        """Z in canonical form and in the dtype of the Gram matrix."""
        return self.operation.outputs(self.z).to(gram_dtype(self.z.dtype))


class Gram(NamedTuple):
    """The Gram matrix of one weight, and what was made on the way."""

    K: Tensor
    """UᵀU / scale², (M, M)."""
    weigh: Callable[[Tensor], Tensor] | None = None
    """Σ_m c_m u_m / scale as a function of c, if the route has left what makes it quick; valid until the next Gram
    matrix."""
    of_bias: Tensor | None = None
    """The Gram matrix of a bias of the same uses, on the same scale, if it was made on the way."""


class Sizes(NamedTuple):
    """All of a use but its numbers."""

    samples: Samples
    geometry: tuple[Any, ...]
    x: torch.Size
    z: torch.Size
    weight: torch.Size
    dtype: torch.dtype


def shape_of(uses: Sequence[Use]) -> Shape:
    """The canonical sizes of a weight's uses."""
    return _shape(tuple(Sizes(op.samples, op.geometry, x.shape, z.shape, w.shape, x.dtype) for op, x, z, w in uses))


@lru_cache(maxsize=4096)  # between large kernels, to look it up costs less than to work it out again
def _shape(uses: tuple[Sizes, ...]) -> Shape:
    (_, M, repeats, _), geometry, x, _, weight, dtype = uses[0]
    (features, channels, *kernel), groups = weight, geometry[-1] if geometry else 1
    T, positions = sum(use.z.numel() for use in uses) // max(1, M * features), math.prod(kernel)
    shape = Shape(M, groups, T, channels * positions, features // groups, positions)
    shape = shape._replace(widened=dtype != gram_dtype(dtype))
    if not geometry:
        return shape
    convolved = [(use.x, use.geometry[1]) for use in uses if use.geometry]
    pixels = sum(images.numel() for images, _ in convolved) // max(1, M * x[1])
    padded = sum(images[0] * math.prod(sides(images, padding)) for images, padding in convolved) // max(1, M)
    shape = shape._replace(pixels=pixels, padded=padded)
    if len(uses) > 1 or repeats > 1 or 0 in (M, T):
        return shape
    return shape._replace(shifted=groups == 1 and set(geometry[0]) == {1}, native=not shape.widened)


def with_scratch(uses: Sequence[Use], scratch: Scratch) -> Iterator[tuple[Use, Scratch]]:
    """Each use with memory of its own: the first, mostly the only one, with that which is used again."""
    return ((use, Scratch() if number else scratch) for number, use in enumerate(uses))
