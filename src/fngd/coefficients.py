r"""Stage 3: from a Gram matrix to the coefficients of the samples.

The natural gradient of one layer is a weighted sum of per-sample gradients (\cref{coeffcient}):

    (F + λI)⁻¹ g = (1/λM) U c     with     c = 1 − (λI + K/M)⁻¹ K1/M = (I + K/(λM))⁻¹ 1

By the paper's rule λ is α‖K‖_F (\cref{prop}). What a batch says beyond its coefficients, and the running mean of these,
can wait until the gradients are out: `history`.

Differs from the paper: it writes (λI + UᵀU)⁻¹ in the section on damping and (λI + UᵀU/M)⁻¹ in \cref{coeffcient}; the
second is the one that follows from the Fisher matrix F = UUᵀ/M, and is used here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fngd.plain import Number, Truth, at_least, chosen, plain


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
    """C = (I + K/(λM))⁻¹ rhs by a Cholesky factorisation.

    Under the paper's damping rule the condition number is at most 1 + 1/(αM), so float32 is enough.

    Args:
        K: Gram matrix of the per-sample gradients, (M, M).
        rhs: Right-hand side, (M,); all ones in the paper.
        alpha: The paper's damping rule, λ = α‖K‖_F. Where K is zero, so is λ, and c = rhs.
        damping: A constant λ in place of the rule.

    Returns:
        The coefficients; the right-hand side in their place where they are not valid.
    """
    norm = plain(torch.linalg.vector_norm(K))
    lam = alpha * norm if damping is None else damping
    A = K / at_least(torch.finfo(K.dtype).tiny, lam * len(K))
    A.diagonal().add_(1.0)
    factor, failed = torch.linalg.cholesky_ex(A, upper=True)  # on a CPU a third quicker than the lower one
    c = torch.cholesky_solve(rhs.unsqueeze(1), factor, upper=True).squeeze(1)
    valid = (norm < torch.inf) & (plain(failed) == 0)
    return Solution(chosen(valid, c, rhs), valid, norm, lam)
