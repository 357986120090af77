"""Pixels: pairwise for a convolution of stride 1, with x_ms · x_nt as a sum of inner products of pixels.

Position s of the output sees, at the kernel's offset o, the input's pixel s + o: patches overlap, their inner products
are sums of the same few, and what lies in the padding is no work at all. That holds for the weighted gradient too:

    Σ_m c_m u_m at offset o  =  Σ_s (c ⊙ z_s)ᵀ x_{s+o}        (over positions s for which s + o is a pixel)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from fngd.operations import Convolution, divided, gram_dtype
from fngd.planner import Plan, Shape
from fngd.products import add_product, blocks, varied_product
from fngd.scratch import Scratch
from fngd.uses import Gram, Use

EVERY = slice(None)


class Shift(NamedTuple):
    """What one position of the kernel sees."""

    by: list[int]
    """How far it looks."""
    here: list[slice]
    """The output positions from which it sees pixels; none if a slice is empty."""
    there: list[slice]
    """These pixels."""


def pixels(uses: Sequence[Use], scale: Tensor | None, shape: Shape, plan: Plan, scratch: Scratch) -> Gram:
    """K, some samples n with all samples m at a time, and of these one output position s of n.

    Rows are pixels first, samples second, so that a pair of pixels is a block of M × n; pairs (t, s) with t before s
    are the others transposed, before and after a shift: they are left out, but for those on the line of s.
    """
    use, M = uses[0], shape.M
    operation, x, z, weight = use
    assert isinstance(operation, Convolution)
    space, out, dtype = x.shape[2:], z.shape[2:], gram_dtype(x.dtype)
    seen = scratch.take("read", (*space, M, x.shape[1]), dtype, x.device).copy_(_pixels_first(x))
    sent = divided(_pixels_first(z), scale, scratch.take("sent", (*out, M, z.shape[1]), dtype, x.device))
    lower, diagonal = seen.new_zeros(M, M), seen.new_zeros(M, M)
    shifts, by_position = _shifts(operation, weight.shape[2:], space, out), sent.flatten(0, -3)
    for some in blocks(M, plan.block):
        n = some.stop - some.start
        Q = _inner_products(seen.flatten(0, -3), some, scratch).view(*space, M, *space, n)
        P = scratch.take("rows", (*out, M, n), dtype, x.device)
        Z = scratch.take("products", (shape.T, M, n), dtype, x.device)
        for number, s in enumerate(product(*(range(size) for size in out))):
            P[s[0] :].zero_()
            for shift in shifts:
                if all(part.start <= at < part.stop for part, at in zip(shift.here, s, strict=True)):
                    _add_looks(P, Q, s, shift)
            varied_product(by_position[number:].flatten(0, 1), by_position[number, some], Z[number:].flatten(0, 1))
            pairs = Z[number:].mul_(P.flatten(0, -3)[number:])
            lower[:, some] += pairs.sum(0)
            diagonal[:, some] += pairs[0]
    return Gram(lower + lower.T - diagonal, partial(_weighed, use, shifts, seen, sent, scratch))


def _pixels_first(t: Tensor) -> Tensor:
    """(M, channels, *space) → (*space, M, channels)."""
    return t.movedim((0, 1), (-2, -1))


def _inner_products(seen: Tensor, some: slice, scratch: Scratch) -> Tensor:
    """The products of all samples' pixels with some samples' pixels that do not come after them."""
    S, M, _ = seen.shape
    Q = scratch.take("U", (S * M, S, some.stop - some.start), seen.dtype, seen.device)
    for pixel in range(S):
        varied_product(seen[pixel:].flatten(0, 1), seen[pixel, some], Q[pixel * M :, pixel])
    return Q


def _add_looks(P: Tensor, Q: Tensor, s: tuple[int, ...], shift: Shift) -> None:
    """Add to the inner products of others' patches with s's those of the pixels that a position of the kernel sees."""
    by, here, there = shift
    pixel: list[int | slice] = [at + far for at, far in zip(s, by, strict=True)]
    from_s, seen_from_s = slice(s[0], here[0].stop), slice(s[0] + by[0], there[0].stop)
    P[(from_s, *here[1:])] += Q[(seen_from_s, *there[1:], EVERY, *pixel)]


def _weighed(use: Use, shifts: Sequence[Shift], seen: Tensor, sent: Tensor, scratch: Scratch, c: Tensor) -> Tensor:
    """The weighted gradient, a line of pixels at a time: of such a line the rows lie one after the other."""
    weighted = torch.mul(sent, c.unsqueeze(1), out=scratch.take("rows", sent.shape, sent.dtype, sent.device))
    summed = sent.new_zeros(sent.shape[-1], len(shifts), seen.shape[-1])
    for number, (_, here, there) in enumerate(shifts):
        for z, x in zip(_lines(weighted, here), _lines(seen, there), strict=True):
            add_product(summed[:, number], z.T, x)
    return use.operation.as_weight(summed, use.weight)


def _lines(rows: Tensor, part: Sequence[slice]) -> Iterator[Tensor]:
    """The rows of a part of all positions, those of a line together: (pixels · M, features) each."""
    inside = rows[tuple(part)]
    return (inside[at].flatten(0, 1) for at in product(*(range(n) for n in inside.shape[:-3])))


def _shifts(operation: Convolution, kernel: Sequence[int], space: Sequence[int], out: Sequence[int]) -> list[Shift]:
    """What each position of the kernel sees."""
    found = []
    for offset in product(*(range(k) for k in kernel)):
        by = [o * d - p for o, d, p in zip(offset, operation.dilation, operation.padding, strict=True)]
        starts = [max(0, -far) for far in by]
        stops = [max(first, min(n, size - far)) for first, n, size, far in zip(starts, out, space, by, strict=True)]
        here = [slice(*ends) for ends in zip(starts, stops, strict=True)]
        there = [slice(part.start + far, part.stop + far) for part, far in zip(here, by, strict=True)]
        found.append(Shift(by, here, there))
    return found
