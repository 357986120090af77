r"""Stage 3: from a Gram matrix to the coefficients of the samples.

The natural gradient of one layer is a weighted sum of per-sample gradients (\cref{coeffcient}):

    (F + λI)⁻¹ g = (1/λM) U c     with     c = 1 − (λI + K/M)⁻¹ K1/M = (I + K/(λM))⁻¹ 1

By the paper's rule λ is α‖K‖_F (\cref{prop}). The eigenvalues of K/(λM) then lie between 0 and 1/(αM), and for many
samples a few steps of an iteration reach the last bit sooner than a factorisation. What a batch says beyond its
coefficients, and the running mean of these, can wait until the gradients are out: `history`.

Differs from the paper: it writes (λI + UᵀU)⁻¹ in the section on damping and (λI + UᵀU/M)⁻¹ in \cref{coeffcient}; the
second is the one that follows from the Fisher matrix F = UUᵀ/M, and is used here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fngd.plain import Number, Truth, at_least, chosen, plain

WORTH = 8
"""Samples for each step of the iteration from which on it takes less time than a factorisation."""


class Solution(NamedTuple):
    """The coefficients of one batch, with the numbers that they came from."""

    c: Tensor
    """One for each sample, (M,); no coefficients where they are not valid."""
    valid: Truth
    """Whether K is finite and could be factorised."""
    norm: Number
    """‖K‖_F."""
    damping: Number
    """λ."""


def solve(K: Tensor, rhs: Tensor, alpha: float, damping: Number | None = None) -> Solution:
    """C = (I + K/(λM))⁻¹ rhs, to the precision of K's numbers.

    Under the paper's damping rule the condition number is at most 1 + 1/(αM), so float32 is enough.

    Args:
        K: Gram matrix of the per-sample gradients, (M, M).
        rhs: Right-hand side, (M,); all ones in the paper.
        alpha: The paper's damping rule, λ = α‖K‖_F. Where K is zero, so is λ, and c = rhs.
        damping: A constant λ in place of the rule.

    Returns:
        The coefficients; the right-hand side in their place where they are not valid.
    """
    M, norm = K.shape[0], plain(torch.linalg.vector_norm(K))
    lam = alpha * norm if damping is None else damping
    divisor = at_least(torch.finfo(K.dtype).tiny, lam * M)
    steps = richardson_steps(M, alpha, K.dtype) if damping is None else None
    c, solved = factorised(K / divisor, rhs) if steps is None else (iterated(K, divisor, rhs, steps), True)
    valid = (norm < torch.inf) & solved
    return Solution(chosen(valid, c, rhs), valid, norm, lam)


def factorised(S: Tensor, rhs: Tensor) -> tuple[Tensor, Truth]:
    """(I + S)⁻¹ rhs by Cholesky's factor, and whether there is one; S is overwritten."""
    S.diagonal().add_(1.0)
    factor, failed = torch.linalg.cholesky_ex(S, upper=True)  # on a CPU a third quicker than the lower one
    c = torch.cholesky_solve(rhs.unsqueeze(1), factor, upper=True).squeeze(1)
    return c, plain(failed) == 0


def iterated(K: Tensor, divisor: Number, rhs: Tensor, steps: Sequence[float]) -> Tensor:
    """(I + S)⁻¹ rhs by Richardson's iteration, c ← c + t r and r ← r − t (I + S) r from c = 0, r = rhs.

    Args:
        K: Symmetric, (M, M).
        divisor: S is K over this; a plain number does not take a pass over K.
        rhs: Right-hand side, (M,).
        steps: Each step's t.

    Returns:
        The solution.
    """
    S, over = (K / divisor, 1.0) if isinstance(divisor, Tensor) else (K, divisor)
    r, c = rhs, steps[0] * rhs
    for t, following in pairwise(steps):
        r = torch.addmv(r, S, r, beta=1 - t, alpha=-t / over)
        c.add_(r, alpha=following)
    return c


@lru_cache(maxsize=256)
def richardson_steps(M: int, alpha: float, dtype: torch.dtype) -> tuple[float, ...] | None:
    """The steps t after which nothing is left of the right-hand side but rounding, under the damping rule.

    With β = 1/(αM) the eigenvalues of I + S lie between 1 and 1 + β, and the best n steps are the inverse roots of
    Chebyshev's polynomial on that interval; the residual is then at most 1/T_n(1 + 2/β) of the right-hand side.
    Smaller steps come first: what later ones enlarge has been made small before.

    Args:
        M: Samples.
        alpha: The damping rule.
        dtype: What the residual is rounded to.

    Returns:
        The steps; None where a factorisation takes less time.
    """
    needed, gained = math.acosh(2 / torch.finfo(dtype).eps), math.acosh(1 + 2 * alpha * M)
    if WORTH * needed > gained * M:
        return None
    n = max(1, math.ceil(needed / gained))
    return tuple(1 / (1 + math.cos(math.pi * (2 * k + 1) / (4 * n)) ** 2 / (alpha * M)) for k in range(n))
