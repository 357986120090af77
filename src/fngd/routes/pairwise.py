r"""Pairwise: K_mn = Σ_{s,t} (x_ms · x_nt)(z_ms · z_nt). U is never formed.

For one position a sample this is K = ZᵀZ * XᵀX (`\cref{trans}`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from fngd.operations import Convolution
from fngd.planner import SAMPLES, Plan, Shape
from fngd.products import blocks, product, varied_product
from fngd.scratch import Products, Scratch
from fngd.uses import Gram, Use, with_scratch

KEPT_PRODUCTS = 16 * 2**20
"""Bytes of an input's products with itself that may be kept for the next layer that reads it."""


def pairwise(uses: Sequence[Use], scale: Tensor, shape: Shape, plan: Plan, scratch: Scratch) -> Gram:
    """K, a block of rows (n, t) at a time with all rows (m, s) of samples m that are not before it.

    The longer side of a product comes first: BLAS is quicker that way round. The sums over s are there first; those
    over t follow when all blocks of a few samples n are done.
    """
    M, G, T, *_ = shape
    x = _joined([use.inputs(own) for use, own in with_scratch(uses, scratch)]).transpose(0, 1).reshape(G, M * T, -1)
    z = _joined([use.outputs() for use in uses]).transpose(0, 1).reshape(G, M * T, -1)
    K, kept = x.new_zeros(M, M), _kept_products(uses, plan, x, scratch)
    for few in blocks(M, M if T == 1 else SAMPLES):
        begin, end = few.start * T, few.stop * T
        sums = K[few.start :, few] if T == 1 else x.new_zeros(M - few.start, end - begin)
        for here in (slice(begin + part.start, begin + part.stop) for part in blocks(end - begin, plan.block)):
            first = here.start // T
            after = slice(first * T, None)
            X = varied_product(x[:, after], x[:, here]) if kept is None or here.start not in kept else kept[here.start]
            if kept is not None:
                kept[here.start] = X
            Z = varied_product(z[:, after], z[:, here].div(scale)).div_(scale)
            found = Z.mul_(X).view(G, M - first, T, -1).sum((0, 2))
            sums[first - few.start :, here.start - begin : here.stop - begin] = found
        if T > 1:
            K[few.start :, few] = sums.view(M - few.start, -1, T).sum(2)
    if plan.block < M * T:  # what is above the diagonal was left out, or begun
        K.tril_().add_(K.tril(-1).T)
    return Gram(K, partial(_weighed, uses[0], x, z, scale) if shape.kernel > 1 else None)


def _weighed(use: Use, x: Tensor, z: Tensor, scale: Tensor, c: Tensor) -> Tensor:
    """The patches are there already, so the weighted gradient is one product; rows are (G, M · T, features)."""
    weighted = (z.unflatten(1, (len(c), -1)) * (c / scale).view(-1, 1, 1)).flatten(1, 2)
    return use.operation.as_weight(product(weighted.mT, x.mT), use.weight)


def _kept_products(uses: Sequence[Use], plan: Plan, rows: Tensor, scratch: Scratch) -> Products | None:
    """Where the products of this input's rows are kept, if another layer has read it and they are not too large."""
    operation, x, *_ = uses[0]
    if len(uses) > 1 or isinstance(operation, Convolution) or rows.shape[1] ** 2 * rows.itemsize > KEPT_PRODUCTS:
        return None
    return scratch.products(x, (operation.samples, plan.block))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The positions of all uses: (M, G, T, d)."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=2)
