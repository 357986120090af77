r"""Stage 3: from a Gram matrix to the coefficients of the samples.

The natural gradient of one layer is a weighted sum of per-sample gradients (\cref{coeffcient}):

    (F + λI)⁻¹ g = (1/λM) U c     with     c = 1 − (λI + K/M)⁻¹ K1/M = (I + K/(λM))⁻¹ 1

`damping` is the paper's rule for λ (\cref{prop}), `coefficients` the solve. What a batch says beyond its coefficients,
and the running mean of these, can wait until the gradients are out: `history`.

Differs from the paper: it writes (λI + UᵀU)⁻¹ in the section on damping and (λI + UᵀU/M)⁻¹ in \cref{coeffcient}; the
second is the one that follows from the Fisher matrix F = UUᵀ/M, and is used here.
"""

from __future__ import annotations

import torch
from torch import Tensor


def damping(K: Tensor, alpha: float) -> Tensor:
    r"""λ = α‖K‖_F (\cref{prop})."""
    norm: Tensor = torch.linalg.matrix_norm(K)
    return alpha * norm


def coefficients(K: Tensor, damping: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor]:
    """C = (I + K/(λM))⁻¹ rhs by a Cholesky factorisation.

    Under the paper's damping rule the condition number is at most 1 + 1/(αM), so float32 is enough.

    Args:
        K: Gram matrix of the per-sample gradients, (M, M).
        damping: λ > 0, or 0 where K is zero: then c = rhs.
        rhs: Right-hand side, (M,); all ones in the paper.

    Returns:
        One coefficient for each sample, (M,), and whether they are valid: K is finite and could be factorised. If not,
        c = rhs.
    """
    A = K / (damping * len(K)).clamp_min(torch.finfo(K.dtype).tiny)
    A.diagonal().add_(1.0)
    factor, failed = torch.linalg.cholesky_ex(A)
    c = torch.cholesky_solve(rhs.unsqueeze(1), factor).squeeze(1)
    valid = (torch.linalg.matrix_norm(K) < torch.inf) & (failed == 0)
    return torch.where(valid, c, rhs), valid
