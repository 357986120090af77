"""Products of matrices, by the library that is quickest: rows with rows, sums of outer products, half of U Uᵀ, c·U.

OneDNN keeps the better part of a megabyte of code for each shape that it meets, distances of rows and of matrices
included. Where a size is another number each time, as for sequences, it is cut into powers of two.
Torch has no product that makes one half of a symmetric matrix: where that is less work, `square` makes a few columns
at a time, each from the diagonal on, and copies what lies below it to the other side. U is short and wide: on AMD's
processors MKL is quicker if its products are cut into parts of U, spread over the cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fngd.onednn import ByOneDNN
from fngd.processor import processor

SMALL = 2**26
"""Multiplications up to which oneDNN makes all of U Uᵀ at once for batches of any size."""
LARGE = 2**22
"""Multiplications from which on a product is worth oneDNN's setting up."""
EVEN = 16
"""What the second number of rows is a multiple of, for oneDNN: others are rare, and each would be a new shape."""
MANY = 256
"""Rows that are multiplied at once where their number varies: more are no quicker, and would be more shapes."""
VARIED_COLUMNS = 32
"""Columns of U Uᵀ that oneDNN makes together for batches of any size; the few that are left over are not its own."""
USUAL_ROWS = 32
"""What the rows of usual batches are a multiple of, for oneDNN where it makes nothing but U Uᵀ."""
WORTH = 64
"""Rows of outer products that are worth a pass over their sum."""


def blocks(total: int, size: int) -> Iterator[slice]:
    """Parts of a dimension, all of one size but the last."""
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def multiply(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """The product a b, in its place if it has one: (*, n, k), (*, k, m) → (*, n, m)."""
    return _by_onednn(a, b, out) if _suits_onednn(a, b) else torch.matmul(a, b, out=out)


def _by_onednn(a: Tensor, b: Tensor, out: Tensor | None) -> Tensor:
    if a.dim() > 2 and a.shape[0] == 1:  # a batch of one is slower than none
        return _by_onednn(a[0], b[0], None if out is None else out[0]).unsqueeze(0)
    with ByOneDNN():
        return torch.matmul(a, b, out=out)


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """The inner products of rows with rows, a bᵀ: (*, n, d), (*, m, d) → (*, n, m)."""
    return multiply(a, b.mT, out)


def varied_product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """The same where n is another number each time, and m may be."""
    other = b.mT
    return _varied_by_onednn(a, other, out) if _suits_onednn(a, other) else torch.matmul(a, other, out=out)


def _varied_by_onednn(a: Tensor, b: Tensor, out: Tensor | None) -> Tensor:
    """The product a b where the rows of a are another number each time, and the columns of b may be."""
    n, m = a.shape[-2], b.shape[-1]
    if m % EVEN:
        return torch.matmul(a, b, out=out)
    if n.bit_count() == 1 and n <= MANY:
        return _by_onednn(a, b, out)
    found = a.new_empty(*a.shape[:-1], m) if out is None else out
    for rows in _powers_of_two(n, MANY):
        multiply(a[..., rows, :], b, found[..., rows, :])
    return found


def varied_multiply(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """The product a b, in its place, where k is another number each time."""
    return multiply(a, b, out) if a.shape[-1].bit_count() == 1 else torch.matmul(a, b, out=out)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Total += a b."""
    if _suits_onednn(a, b):
        with ByOneDNN():
            total.addmm_(a, b)
    else:
        total.addmm_(a, b)


def summed_outer(z: Tensor, x: Tensor) -> Tensor:
    """Σ_r z_rᵀ x_r over all rows, another number of them each time: (n, d_out), (n, d_in) → (d_out, d_in)."""
    if torch.compiler.is_compiling():  # a graph that knows the number of rows would be made anew for each
        return z.T @ x
    whole = len(z) - len(z) % WORTH
    if whole == 0 or not _suits_onednn(z.T, x):
        return z.T @ x
    first, *others = _powers_of_two(whole)
    total = multiply(z[first].T, x[first])
    for part in others:
        add_product(total, z[part].T, x[part])
    return total.addmm_(z[whole:].T, x[whole:]) if whole < len(z) else total


def _powers_of_two(n: int, most: int | None = None) -> Iterator[slice]:
    """Parts of n, the largest first; `most` is a power of two itself."""
    start = 0
    while start < n:
        left = n - start if most is None else min(n - start, most)
        stop = start + (1 << left.bit_length() - 1)
        yield slice(start, stop)
        start = stop


def square(U: Tensor, total: Tensor | None = None) -> Tensor:
    """U Uᵀ for U of (M, entries), added to the total of other parts of U if there is one: (M, M)."""
    K = _square(U)
    return K if total is None else total.add_(K)


def _square(U: Tensor) -> Tensor:
    M, speed = U.shape[0], processor()
    many_shapes = speed.onednn and M.bit_count() != 1
    if U.device.type != "cpu" or M * U.numel() <= (SMALL if many_shapes else speed.whole):
        return _wide_product(U, U)
    distance = math.ceil(M / MANY) * MANY if many_shapes else M  # of rows: one for batches of most sizes
    K = U.new_empty(M, distance)[:, :M]
    for columns in blocks(M, VARIED_COLUMNS if many_shapes else speed.columns):
        _wide_product(U[columns.start :], U[columns], K[columns.start :, columns])
        if columns.stop < M:
            K[columns, columns.stop :] = K[columns.stop :, columns].T
    return K.contiguous()


def _wide_product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """The inner products of few long rows with as many or fewer."""
    speed, other = processor(), b.T
    if _suits_onednn(a, other):
        return _varied_by_onednn(a, other, out)
    if a.shape[0] % USUAL_ROWS == 0 and a.shape[0] * b.numel() >= speed.squares and _may_be_onednns(a):
        return _by_onednn(a, other, out)
    parts = math.gcd(speed.parts, a.shape[1])
    if parts == 1 or a.device.type != "cpu":
        return torch.mm(a, other, out=out)
    side_by_side = product(*(t.unflatten(1, (parts, -1)).transpose(0, 1) for t in (a, b)))
    return torch.sum(side_by_side, 0, out=out)


def weighted_sum(c: Tensor, U: Tensor) -> Tensor:
    """Σ_m c_m u_m for parts of U, (M, parts, entries) → (parts, entries): the parts are spread over the cores."""
    return torch.bmm(c.expand(U.shape[1], 1, -1), U.transpose(0, 1)).squeeze(1)


def _suits_onednn(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN is to multiply: a large product of float32, where it is quicker; not what autocast shortens."""
    return a.shape[-2] * b.numel() >= LARGE and processor().onednn and _may_be_onednns(a)


def _may_be_onednns(a: Tensor) -> bool:
    """Whether oneDNN's products of such numbers are what they should be, and the user leaves it to us."""
    if a.dtype != torch.float32 or a.device.type != "cpu":
        return False
    return bool(torch.backends.mkldnn.enabled) and not torch.is_autocast_enabled("cpu")
