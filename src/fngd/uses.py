"""What a Gram matrix is made of, the uses of one weight in a batch, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fngd.operations import Convolution, Operation, gram_dtype
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


class Sizes(NamedTuple):
    """What a use says of its shape: all but numbers."""

    operation: Operation
    x: torch.Size
    z: torch.Size
    weight: torch.Size
    dtype: torch.dtype


def shape_of(uses: Sequence[Use]) -> Shape:
    """The canonical sizes of a weight's uses."""
    return _shape(tuple(Sizes(op, x.shape, z.shape, weight.shape, x.dtype) for op, x, z, weight in uses))


@lru_cache(maxsize=4096)  # between large kernels, to look it up costs less than to work it out again
def _shape(uses: tuple[Sizes, ...]) -> Shape:
    operation, x, _, weight, dtype = uses[0]
    M, (features, channels, *kernel) = operation.samples.M, weight
    T, positions = sum(use.z.numel() for use in uses) // max(1, M * features), math.prod(kernel)
    shape = Shape(M, operation.groups, T, channels * positions, features // operation.groups, positions)
    shape = shape._replace(widened=dtype != gram_dtype(dtype))
    if not isinstance(operation, Convolution):
        return shape
    convolved = [(use.operation, use.x) for use in uses if isinstance(use.operation, Convolution)]
    pixels = sum(images.numel() for _, images in convolved) // max(1, M * x[1])
    padded = sum(images[0] * math.prod(own.padded(images)) for own, images in convolved) // max(1, M)
    shape = shape._replace(pixels=pixels, padded=padded)
    if len(uses) > 1 or operation.samples.repeats > 1 or 0 in (M, T):
        return shape
    shifted = operation.groups == 1 and set(operation.stride) == {1}
    return shape._replace(shifted=shifted, native=not shape.widened)


def with_scratch(uses: Sequence[Use], scratch: Scratch) -> Iterator[tuple[Use, Scratch]]:
    """Each use with memory of its own: the first, mostly the only one, with that which is used again."""
    return ((use, Scratch() if number else scratch) for number, use in enumerate(uses))
