"""Materialised: U_m = z_mᵀ x_m, K = U Uᵀ, in tiles of some input × some output features, over which K adds up.

A tile is made for a few samples at a time, so that their patches are still in a core's cache when they are multiplied.
If the budget allows it all tiles are kept, and the weighted gradient is c·U.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import ceil, prod
from typing import NamedTuple

from torch import Tensor

from fngd.operations import Convolution, gram_dtype, widened
from fngd.planner import Plan, Shape
from fngd.products import blocks, multiply, square, varied_multiply, weighted_sum
from fngd.scratch import Scratch
from fngd.uses import Gram, Use, with_scratch


class Rows(NamedTuple):
    """The rows of one use, from which any features can be taken: the input's or the output gradient's are divided."""

    use: Use
    readable: Tensor
    """The input, divided by the scale if it had to be copied."""
    z: Tensor
    """The output gradient, (M, G, d_out, T)."""
    scale: Tensor | None
    """What z is still to be divided by."""
    scratch: Scratch

    def inputs(self, features: slice, samples: slice) -> Tensor:
        """Some input features of some samples, (m, G, T, features)."""
        repeats = self.readable.shape[0] // self.z.shape[0]
        rows = self.readable[samples.start * repeats : samples.stop * repeats]
        return self.use.operation.inputs(rows, features, self.scratch)

    def outputs(self, features: slice, samples: slice) -> Tensor:
        """Some output features of some samples, (m, G, features, T)."""
        some = self.z[samples]
        every = features.stop - features.start == some.shape[2]
        return widened(some if every else some[:, :, features], self.scale, self.scratch, "sent")


def materialised(uses: Sequence[Use], scale: Tensor | None, shape: Shape, plan: Plan, scratch: Scratch) -> Gram:
    """K, a tile of U at a time."""
    M, G, _, d_in, d_out, *_ = shape
    rows = [_rows(use, scale, own) for use, own in with_scratch(uses, scratch)]
    z, kept, K = uses[0].z, list[Tensor](), None
    tiles, entries = ceil(d_in / plan.block) * ceil(d_out / plan.outputs), M * G * plan.block * plan.outputs
    held = scratch.take("U", (tiles if plan.kept else 1, entries), gram_dtype(z.dtype), z.device)
    for features, outputs in product(blocks(d_in, plan.block), blocks(d_out, plan.outputs)):
        size = (M, G, outputs.stop - outputs.start, features.stop - features.start)
        tile = held[len(kept), : prod(size)].view(size)
        for samples in blocks(M, plan.samples):
            _multiply(rows, features, outputs, samples, tile[samples])
        K = square(tile.view(M, -1), K)
        if plan.kept:
            kept.append(tile)
    assert K is not None
    return Gram(K, partial(_weighed, uses[0], shape, plan, kept) if plan.kept else None)


def _rows(use: Use, scale: Tensor | None, scratch: Scratch) -> Rows:
    readable, left = use.operation.readable(use.x, use.weight, scale, scratch)
    return Rows(use, readable, use.operation.outputs(use.z).mT, left, scratch)


def _multiply(rows: Sequence[Rows], features: slice, outputs: slice, samples: slice, u: Tensor) -> None:
    """The gradients of some samples, Σ over uses of zᵀx, into their place in a tile."""
    first, *others = rows
    into_place = multiply if isinstance(first.use.operation, Convolution) else varied_multiply
    into_place(first.outputs(outputs, samples), first.inputs(features, samples), u)
    for row in others:
        u += row.outputs(outputs, samples) @ row.inputs(features, samples)


def _weighed(use: Use, shape: Shape, plan: Plan, tiles: Sequence[Tensor], c: Tensor) -> Tensor:
    """The weighted gradient c·U."""
    _, G, _, d_in, d_out, *_ = shape
    if len(tiles) == 1:
        return use.operation.as_weight(weighted_sum(c, tiles[0].flatten(1, 2)), use.weight)
    summed = tiles[0].new_empty(G, d_out, d_in)
    places = product(blocks(d_in, plan.block), blocks(d_out, plan.outputs))
    for tile, (features, outputs) in zip(tiles, places, strict=True):
        summed[:, outputs, features] = weighted_sum(c, tile.flatten(1, 2)).unflatten(0, (G, -1))
    return use.operation.as_weight(summed, use.weight)
