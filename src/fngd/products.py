"""The products that routes share: U Uᵀ, half of it, and c·U; blocks of a dimension.

Torch has no product that makes one half of a symmetric matrix: `add_square` makes a few columns at a time, each from
the diagonal on. For those oneDNN is quicker than BLAS, which torch takes for `a @ b.T`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fngd.planner import COLUMNS

LARGE = 2**24
"""Multiplications from which on a product is worth oneDNN's setting up."""


def blocks(total: int, size: int) -> Iterator[slice]:
    """Parts of a dimension, all of one size but the last."""
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def add_square(K: Tensor, U: Tensor) -> None:
    """K += U Uᵀ for U of (M, entries); above the diagonal only where that is no extra work."""
    if not _suits_onednn(U):
        K.addmm_(U, U.T)
        return
    for columns in blocks(len(K), COLUMNS):
        K[columns.start :, columns] += _by_onednn(U[columns.start :], U[columns])


def mirrored(K: Tensor, columns_at_once: int = COLUMNS) -> Tensor:
    """The symmetric matrix whose blocks of columns are there from the diagonal on."""
    for columns in blocks(len(K), columns_at_once):
        if columns.stop < len(K):
            K[columns, columns.stop :] = K[columns.stop :, columns].T
    return K


def weighted_sum(c: Tensor, U: Tensor) -> Tensor:
    """Σ_m c_m u_m for parts of U, (M, parts, entries) → (parts, entries): the parts are spread over the cores."""
    return torch.bmm(c.expand(U.shape[1], 1, -1), U.transpose(0, 1)).squeeze(1)


def _suits_onednn(U: Tensor) -> bool:
    """Whether oneDNN is quicker than BLAS on the columns of U Uᵀ: on a CPU, if there is much to do.

    It keeps the better part of a megabyte of code for every shape that it has met: not for products of many shapes.
    """
    if U.device.type != "cpu" or U.dtype != torch.float32 or len(U) * U.numel() < LARGE:
        return False
    return bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)


def _by_onednn(a: Tensor, b: Tensor) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    return found
