"""The products that routes share: U Uᵀ, half of it, and c·U; blocks of a dimension.

Torch has no product that makes one half of a symmetric matrix: `add_square` makes a few columns at a time, each from
the diagonal on. U is short and wide, so both of its products are cut into parts of U, which are spread over the cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fngd.planner import COLUMNS

PARTS = 4
"""Parts of U whose squares are made side by side, where its width allows it."""


def blocks(total: int, size: int) -> Iterator[slice]:
    """Parts of a dimension, all of one size but the last."""
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def add_square(K: Tensor, U: Tensor) -> None:
    """K += U Uᵀ for U of (M, entries); above the diagonal only in the blocks on it."""
    parts = math.gcd(PARTS, U.shape[1])
    U = U.view(len(K), parts, U.shape[1] // parts).transpose(0, 1)
    for columns in blocks(len(K), COLUMNS):
        K[columns.start :, columns] += torch.bmm(U[:, columns.start :], U[:, columns].mT).sum(0)


def mirrored(K: Tensor, columns_at_once: int = COLUMNS) -> Tensor:
    """The symmetric matrix whose blocks of columns are there from the diagonal on."""
    for columns in blocks(len(K), columns_at_once):
        if columns.stop < len(K):
            K[columns, columns.stop :] = K[columns.stop :, columns].T
    return K


def weighted_sum(c: Tensor, U: Tensor) -> Tensor:
    """Σ_m c_m u_m for parts of U, (M, parts, entries) → (parts, entries): the parts are spread over the cores."""
    return torch.bmm(c.expand(U.shape[1], 1, -1), U.transpose(0, 1)).squeeze(1)
