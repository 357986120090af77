r"""Stage 3: from a Gram matrix to the coefficients of the samples.

The natural gradient of one layer is a weighted sum of per-sample gradients (\cref{coeffcient}):

    (F + λI)⁻¹ g = (1/λM) U c     with     c = 1 − (λI + K/M)⁻¹ K1/M = (I + K/(λM))⁻¹ 1

`damping` is the paper's rule for λ (\cref{prop}), `coefficients` the solve, `measure` what the statistics report of
it, and `History` keeps the running mean c̃ that later steps share.

Differs from the paper: it writes (λI + UᵀU)⁻¹ in the section on damping and (λI + UᵀU/M)⁻¹ in \cref{coeffcient}; the
second is the one that follows from the Fisher matrix F = UUᵀ/M, and is used here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


def damping(K: Tensor, alpha: float) -> Tensor:
    r"""λ = α‖K‖_F (\cref{prop})."""
    norm: Tensor = torch.linalg.matrix_norm(K)
    return alpha * norm


def coefficients(K: Tensor, damping: Tensor, rhs: Tensor) -> Tensor:
    """C = (I + K/(λM))⁻¹ rhs by a Cholesky factorisation.

    Under the paper's damping rule the condition number is at most 1 + 1/(αM), so float32 is enough.

    Args:
        K: Gram matrix of the per-sample gradients, (M, M).
        damping: λ > 0, or 0 where K is zero: then c = rhs.
        rhs: Right-hand side, (M,); all ones in the paper.

    Returns:
        One coefficient for each sample, (M,); not finite if K is not or cannot be factorised.
    """
    A = torch.where(damping > 0, K / (damping * len(K)), 0.0)
    A.diagonal().add_(1.0)
    factor, failed = torch.linalg.cholesky_ex(A)
    c = torch.cholesky_solve(rhs.unsqueeze(1), factor).squeeze(1)
    finite = K.sum().isfinite()  # if the sum is, so are its terms
    return torch.where((failed == 0) & finite, c, torch.nan)


class Measures(NamedTuple):
    """What one batch says of a layer's coefficients."""

    mean: Tensor
    spread: Tensor
    """Standard deviation of c over the samples of the batch."""
    damping: Tensor
    effective_rank: Tensor
    """(tr K)²/‖K‖_F²: 1 if all samples pull the same way, M if all are orthogonal and of one length."""
    cosine: Tensor
    """Between the weighted gradient Uc and the plain one U1."""


def measure(K: Tensor, c: Tensor, damping: Tensor) -> Measures:
    """The statistics of one batch, all from K and c: the gradients themselves are not needed."""
    Kc, K1 = K @ c, K.sum(1)
    lengths = (c @ Kc).clamp_min(0).sqrt() * K1.sum().clamp_min(0).sqrt()
    rank = K.trace() ** 2 / torch.linalg.matrix_norm(K) ** 2
    return Measures(c.mean(), c.std(correction=0), damping, rank, K1 @ c / lengths)


@dataclass
class History:
    """The coefficients of one layer over the batches that derived them."""

    mean: Tensor | None = None
    """c̃, the running mean of c, position by position: (M,)."""
    count: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Batches in c̃."""
    totals: Tensor = field(default_factory=lambda: torch.zeros(len(Measures._fields), dtype=torch.float64))
    """Sums of the measures over the batches."""
    counted: Tensor = field(default_factory=lambda: torch.zeros(len(Measures._fields), dtype=torch.float64))
    """Batches in each sum: a measure that has no value (a cosine of zero gradients) is left out of its sum."""
    batches: Tensor = field(default_factory=lambda: torch.zeros(()))
    skipped: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Batches whose Gram matrix was not finite: they took the plain gradient and left c̃ alone."""

    def add(self, c: Tensor, measures: Measures, valid: Tensor, weight: Callable[[Tensor], Tensor]) -> None:
        """Take in one batch; where `valid` is false nothing but `skipped` changes.

        A batch shorter than c̃ (the last of an epoch) is measured but does not enter c̃; a longer one starts it anew,
        if it is valid: only then is a tensor's value waited for.

        Args:
            c: The batch's coefficients, (M,).
            measures: What was measured on the batch.
            valid: Whether the batch's Gram matrix was finite: a boolean tensor, so that nothing waits for it.
            weight: The policy's share of the newest batch in c̃, a function of the number of batches.
        """
        if (self.mean is None or len(self.mean) < len(c)) and bool(valid):
            self.mean, self.count = torch.zeros_like(c), torch.zeros_like(c[0])
        if self.mean is not None and len(self.mean) == len(c):
            self.count = self.count + valid
            step = weight(self.count.clamp_min(1)) * (c - self.mean)
            self.mean = torch.where(valid, self.mean + step, self.mean)
        values = torch.stack([value.double() for value in measures])
        totals, has_value = self.totals.to(values.device), valid & values.isfinite()
        self.totals = torch.where(has_value, totals + values, totals)
        self.counted = self.counted.to(values.device) + has_value
        self.batches = self.batches + valid
        self.skipped = self.skipped + ~valid

    @property
    def measures(self) -> Measures:
        """The measures averaged over the valid batches."""
        return Measures(*(self.totals / self.counted.clamp_min(1)).unbind())
