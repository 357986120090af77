"""Products of matrices, by the library that is quickest: rows with rows, sums of outer products, half of U Uᵀ, c·U.

Torch has no product that makes one half of a symmetric matrix: `add_square` makes a few columns at a time, each from
the diagonal on. U is short and wide: MKL is quicker if its products are cut into parts of U, spread over the cores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fngd.processor import processor

PARTS = 4
"""Parts of U whose squares are made side by side by MKL, where its width allows it."""
SMALL = 2**19
"""Entries of U and of K up to which all of U Uᵀ is made at once: the calls would take longer than its other half."""
LARGE = 2**22
"""Multiplications from which on a product is worth oneDNN's setting up."""
EVEN = 16
"""Rows of the second factor come in multiples of it for oneDNN: others are rare, and each would be a new shape."""
WORTH = 64
"""Rows of outer products that are worth a pass over their sum."""
TURNED = 16 * 2**20
"""Bytes of z that are turned at once: oneDNN does it in fresh memory."""


def blocks(total: int, size: int) -> Iterator[slice]:
    """Parts of a dimension, all of one size but the last."""
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def product(a: Tensor, b: Tensor) -> Tensor:
    """The inner products of rows with rows, a bᵀ: (*, n, d), (*, m, d) → (*, n, m)."""
    if not _suits_onednn(a, b):
        return a @ b.mT
    found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.view(b.shape[-2:]), None, "none", [], "")
    return found


def varied_product(a: Tensor, b: Tensor) -> Tensor:
    """The same where n or m is another number each time, as for sequences: in powers of two."""
    parts = [list(_powers_of_two(t.shape[-2])) for t in (a, b)]
    if max(map(len, parts)) == 1 or not _suits_onednn(a, b):
        return product(a, b)
    found = a.new_empty(*a.shape[:-1], b.shape[-2])
    for rows, columns in itertools.product(*parts):
        found[..., rows, columns] = product(a[..., rows, :], b[..., columns, :])
    return found


def summed_outer(z: Tensor, x: Tensor) -> Tensor:
    """Σ_r z_rᵀ x_r over all rows, another number of them each time: (n, d_out), (n, d_in) → (d_out, d_in)."""
    if torch.compiler.is_compiling():  # a graph that knows the number of rows would be made anew for each
        return z.T @ x
    whole = len(z) - len(z) % WORTH
    if whole == 0 or not _suits_onednn(z.T, x.T):
        return z.T @ x
    first, *others = _powers_of_two(whole, most=max(WORTH, TURNED // z[0].nbytes))
    total = product(z[first].T, x[first].T)
    for part in others:
        total += product(z[part].T, x[part].T)
    return total.addmm_(z[whole:].T, x[whole:]) if whole < len(z) else total


def _powers_of_two(n: int, most: int | None = None) -> Iterator[slice]:
    """Parts of n, the largest first: few sizes, since oneDNN keeps the better part of a megabyte of code for each."""
    start = 0
    while start < n:
        size = n - start if most is None else min(n - start, most)
        stop = start + (1 << size.bit_length() - 1)
        yield slice(start, stop)
        start = stop


def add_square(K: Tensor, U: Tensor) -> None:
    """K += U Uᵀ for U of (M, entries); above the diagonal only in the blocks on it."""
    small = max(U.numel(), K.numel()) <= SMALL
    parts, at_once = math.gcd(PARTS, U.shape[1]), max(1, len(K)) if small else processor().columns
    for columns in blocks(len(K), at_once):
        rows, some = U[columns.start :], U[columns]
        if _suits_onednn(rows, some):
            K[columns.start :, columns] += varied_product(rows, some)
        else:
            cut = (t.unflatten(1, (parts, -1)).transpose(0, 1) for t in (rows, some))
            K[columns.start :, columns] += product(*cut).sum(0)


def mirrored(K: Tensor) -> Tensor:
    """The symmetric matrix of which `add_square` has made little more than the lower half."""
    for columns in blocks(len(K), processor().columns):
        if columns.stop < len(K):
            K[columns, columns.stop :] = K[columns.stop :, columns].T
    return K


def weighted_sum(c: Tensor, U: Tensor) -> Tensor:
    """Σ_m c_m u_m for parts of U, (M, parts, entries) → (parts, entries): the parts are spread over the cores."""
    return torch.bmm(c.expand(U.shape[1], 1, -1), U.transpose(0, 1)).squeeze(1)


def _suits_onednn(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN is to multiply: one large product of float32, where it is quicker."""
    if a.shape[-2] * b.numel() < LARGE or math.prod(a.shape[:-2]) != 1 or b.shape[-2] % EVEN or b.shape[-1] < EVEN:
        return False
    if a.dtype != torch.float32 or a.device.type != "cpu" or not (_is_dense(a) and _is_dense(b)):
        return False
    return processor().onednn and bool(torch.backends.mkldnn.enabled)


def _is_dense(t: Tensor) -> bool:
    """Whether its rows, or its columns, lie without gaps: for others oneDNN has only its slowest code."""
    return t.is_contiguous() or t.mT.is_contiguous()
