"""Materialised: U_m = z_mᵀ x_m, K = U Uᵀ, in tiles of some input × some output features, over which K adds up.

All tiles of U are kept if the budget allows it, else a few, or none: their part of the weighted gradient is c·U. If
there are any, the rest of it is a product over all samples, (c ⊙ Z)ᵀ X, for which patches are gathered once more:
little work beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from fngd.operations import widened
from fngd.planner import Plan, Shape
from fngd.products import add_square, blocks, mirrored, weighted_sum
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

    def inputs(self, features: slice) -> Tensor:
        """Some input features, (M, G, T, features)."""
        return self.use.operation.inputs(self.readable, self.use.weight, features, self.scratch)

    def outputs(self, features: slice) -> Tensor:
        """Some output features, (M, G, features, T)."""
        return widened(self.z[:, :, features], self.scale, self.scratch, "sent")

    def weighted(self, c: Tensor, spare: Tensor) -> Tensor:
        """The output gradients times the samples' coefficients, (G, d_out, M · T), in spare memory if they fit."""
        z, size = self.z.movedim(0, 2), self.z.numel()
        fits = spare.numel() >= size
        place = spare[:size] if fits else self.scratch.take("sent", (size,), spare.dtype, z.device)
        return torch.mul(z, c.unsqueeze(1), out=place.view(z.shape)).flatten(2)


def materialised(uses: Sequence[Use], scale: Tensor, shape: Shape, plan: Plan, scratch: Scratch) -> Gram:
    """K, a tile of U at a time."""
    M, G, _, d_in, d_out, *_ = shape
    rows = [_rows(use, scale, own) for use, own in with_scratch(uses, scratch)]
    K, kept = scale.new_zeros(M, M), list[Tensor]()
    tiles, entries = ceil(d_in / plan.block) * ceil(d_out / plan.outputs), M * G * plan.block * plan.outputs
    held = scratch.take("U", (min(plan.kept + 1, tiles), entries), K.dtype, K.device)
    for features in blocks(d_in, plan.block):
        seen = [row.inputs(features) for row in rows]
        for outputs in blocks(d_out, plan.outputs):
            size = M * G * (outputs.stop - outputs.start) * (features.stop - features.start)
            tile = held[len(kept), :size].view(M, G, outputs.stop - outputs.start, -1)
            torch.matmul(rows[0].outputs(outputs), seen[0], out=tile)
            for row, inputs in zip(rows[1:], seen[1:], strict=True):
                tile += row.outputs(outputs) @ inputs
            add_square(K, tile.view(M, -1))
            if len(kept) < plan.kept:
                kept.append(tile)
    return Gram(mirrored(K), partial(_weighed, rows, shape, plan, kept, held[-1]) if kept else None)


def _rows(use: Use, scale: Tensor, scratch: Scratch) -> Rows:
    readable, left = use.operation.readable(use.x, scale, scratch)
    return Rows(use, readable, use.operation.outputs(use.z).mT, left, scratch)


def _weighed(
    rows: Sequence[Rows], shape: Shape, plan: Plan, kept: Sequence[Tensor], spare: Tensor, c: Tensor
) -> Tensor:
    """The weighted gradient: what is kept is summed, what is not is multiplied; the last tile's place is free then."""
    _, G, _, d_in, d_out, *_ = shape
    summed, tiles, weighted = kept[0].new_empty(G, d_out, d_in), iter(kept), list[Tensor]()
    for features in blocks(d_in, plan.block):
        done = 0
        for tile in islice(tiles, ceil(d_out / plan.outputs)):
            outputs = slice(done, done + tile.shape[2])
            summed[:, outputs, features] = weighted_sum(c, tile.flatten(1, 2)).unflatten(0, (G, -1))
            done = outputs.stop
        if done < d_out:
            weighted = weighted or [row.weighted(c, spare if row is rows[0] else spare[:0]) for row in rows]
            parts = [
                sent[:, done:] @ row.inputs(features).transpose(0, 1).flatten(1, 2)
                for row, sent in zip(rows, weighted, strict=True)
            ]
            summed[:, done:, features] = sum(parts[1:], start=parts[0])
    return rows[0].use.operation.as_weight(summed, rows[0].use.weight)
