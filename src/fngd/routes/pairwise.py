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


def pairwise(uses: Sequence[Use], scale: Tensor | None, shape: Shape, plan: Plan, scratch: Scratch) -> Gram:
    """K from rows, (M · T, features), or (G, M · T, features) where there are groups."""
    M, _, T, *_ = shape
    x = _rows([use.inputs(own) for use, own in with_scratch(uses, scratch)])
    z = _rows([use.outputs() for use in uses])
    kept = _kept_products(uses, plan, x, scratch)
    weigh = partial(_weighed, uses[0], x, z, scale) if shape.kernel > 1 else None
    if T > 1 or plan.block < M:
        return Gram(_in_blocks(x, z, scale, shape, plan, kept), weigh)
    K, of_bias = _of_one_position(x, _divided(z, scale), kept)
    return Gram(K, weigh, of_bias)


def _of_one_position(x: Tensor, z: Tensor, kept: Products | None) -> tuple[Tensor, Tensor]:
    r"""K = ZᵀZ * XᵀX (`\cref{trans}`) and ZᵀZ, which is a bias's, the sums over the groups."""
    Z = varied_product(z, z)
    K = _products(x, x, 0, kept) * Z
    return (K, Z) if K.dim() == 2 else (K.sum(0), Z.sum(0))


def _in_blocks(x: Tensor, z: Tensor, scale: Tensor | None, shape: Shape, plan: Plan, kept: Products | None) -> Tensor:
    """K, a block of rows (n, t) at a time with all rows (m, s) of samples m that are not before it.

    The longer side of a product comes first: BLAS is quicker that way round. The sums over s are there first; those
    over t follow when all blocks of a few samples n are done.
    """
    M, G, T, *_ = shape
    K = x.new_zeros(M, M)
    for few in blocks(M, M if T == 1 else SAMPLES):
        begin, end = few.start * T, few.stop * T
        sums = K[few.start :, few] if T == 1 else x.new_zeros(M - few.start, end - begin)
        for here in (slice(begin + part.start, begin + part.stop) for part in blocks(end - begin, plan.block)):
            first = here.start // T
            after = slice(first * T, None)
            X = _products(x[..., after, :], x[..., here, :], here.start, kept)
            Z = varied_product(z[..., after, :], _divided(z[..., here, :], scale))
            found = (Z if scale is None else Z.div_(scale)).mul_(X).view(G, M - first, T, -1).sum((0, 2))
            sums[first - few.start :, here.start - begin : here.stop - begin] = found
        if T > 1:
            K[few.start :, few] = sums.view(M - few.start, -1, T).sum(2)
    return K.tril().add_(K.tril(-1).T)  # what is above the diagonal was left out, or begun


def _products(x: Tensor, some: Tensor, start: int, kept: Products | None) -> Tensor:
    """The products of an input's rows with some of them, which begin at `start`; kept ones are not made again."""
    if kept is None:
        return varied_product(x, some)
    if start not in kept:
        kept[start] = varied_product(x, some)
    return kept[start]


def _weighed(use: Use, x: Tensor, z: Tensor, scale: Tensor | None, c: Tensor) -> Tensor:
    """The patches are there already, so the weighted gradient is one product."""
    weighted = (z.unflatten(-2, (len(c), -1)) * _divided(c, scale).view(-1, 1, 1)).flatten(-3, -2)
    return use.operation.as_weight(product(weighted.mT, x.mT), use.weight)


def _kept_products(uses: Sequence[Use], plan: Plan, rows: Tensor, scratch: Scratch) -> Products | None:
    """Where the products of this input's rows are kept, if another layer has read it and they are not too large."""
    operation, x, *_ = uses[0]
    if len(uses) > 1 or isinstance(operation, Convolution) or rows.shape[-2] ** 2 * rows.itemsize > KEPT_PRODUCTS:
        return None
    return scratch.products(x, (operation.samples, plan.block))


def _divided(t: Tensor, scale: Tensor | None) -> Tensor:
    return t if scale is None else t / scale


def _rows(parts: Sequence[Tensor]) -> Tensor:
    """The positions of all uses, (M, G, T, d) each, as rows: sample by sample, the groups in front if there are any."""
    rows = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=2)
    groups, features = rows.shape[1], rows.shape[3]
    return rows.reshape(-1, features) if groups == 1 else rows.transpose(0, 1).reshape(groups, -1, features)
