r"""What the batches said of a layer: the running mean c̃ that later steps share, and the measures of `statistics()`.

When a layer's gradient is due it notes down a `Report`, a few vectors; what follows from it is worked out by `settle`
for all layers at once, at the end of the step. Layers are many and these tensors small: one by one, the calls alone
would take longer than a small layer's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fngd.coefficients import Solution


class Report(NamedTuple):
    """What a layer knows of a batch when its gradient is due; of several layers, with one dimension more in front."""

    c: Tensor
    """The coefficients, (M,)."""
    valid: Tensor
    """Whether they could be derived; if not, c is to be ignored."""
    K1: Tensor
    Kc: Tensor
    trace: Tensor
    """Of K, on whose scale all but c and `unit` are."""
    norm: Tensor
    """‖K‖_F."""
    damping: Tensor
    """λ on the scale of K."""
    unit: Tensor
    """The square of this turns numbers on the scale of K into numbers on the scale of the true gradients."""


def report(K: Tensor, solution: Solution, unit: Tensor) -> Report:
    """What is to be kept of K.

    Args:
        K: The Gram matrix, (M, M).
        solution: The coefficients, with the norm of K and λ.
        unit: What the gradients have been divided by.

    Returns:
        The report.
    """
    c, valid, norm, damping = solution
    return Report(c, valid, K.sum(1), K @ c, K.trace(), norm, damping, unit)


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


def measure(batch: Report) -> Measures:
    """The measures of a batch, in float64; the gradients themselves are not needed."""
    c, _, K1, Kc, trace, norm, damping, unit = (value.double() for value in batch)
    spread, mean = torch.std_mean(c, -1, correction=0)
    lengths = ((c * Kc).sum(-1).clamp_min(0) * K1.sum(-1).clamp_min(0)).sqrt()
    return Measures(mean, spread, damping * unit**2, (trace / norm) ** 2, (K1 * c).sum(-1) / lengths)


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

    @property
    def measures(self) -> Measures:
        """The measures averaged over the valid batches."""
        return Measures(*(self.totals / self.counted.clamp_min(1)).unbind())

    def make_room(self, batch: Report) -> bool:
        """Make c̃ as long as a batch, if it is to be, and say whether the batch's coefficients enter it.

        A batch shorter than c̃ (the last of an epoch) is measured but does not enter c̃; a longer one starts it anew,
        if it is valid: only then is a tensor's value waited for.
        """
        if (self.mean is None or len(self.mean) < len(batch.c)) and bool(batch.valid):
            self.mean, self.count = torch.zeros_like(batch.c), torch.zeros_like(batch.c[0])
        return self.mean is not None and len(self.mean) == len(batch.c)


def settle(reports: Sequence[tuple[History, Report]], weight: Callable[[Tensor], Tensor]) -> None:
    """Take in a batch of each of several layers, those of one shape and device together.

    Where a batch is not valid nothing but `skipped` changes; whether it is, is a tensor, so that nothing waits for it.

    Args:
        reports: Different histories, each with what its layer has reported.
        weight: The policy's share of the newest batch in c̃, a function of the numbers of batches.
    """
    alike: dict[Any, list[tuple[History, Report]]] = {}
    for history, batch in reports:
        key = history.make_room(batch), len(batch.c), batch.c.dtype, batch.c.device
        alike.setdefault(key, []).append((history, batch))
    for (accepted, *_), group in alike.items():
        histories = [history for history, _ in group]
        batch = Report(*map(torch.stack, zip(*(batch for _, batch in group), strict=True)))
        _add_measures(histories, batch)
        if accepted:
            _add_coefficients(histories, batch, weight)


def _add_measures(histories: Sequence[History], batch: Report) -> None:
    def table(name: str) -> Tensor:
        return torch.stack([getattr(history, name).to(batch.c.device) for history in histories])

    valid, values, totals = batch.valid, torch.stack(measure(batch), 1), table("totals")
    has_value = valid.unsqueeze(1) & values.isfinite()
    totals = torch.where(has_value, totals + values, totals)
    rows = zip(totals, table("counted") + has_value, table("batches") + valid, table("skipped") + ~valid, strict=True)
    for history, row in zip(histories, rows, strict=True):
        history.totals, history.counted, history.batches, history.skipped = row


def _add_coefficients(histories: Sequence[History], batch: Report, weight: Callable[[Tensor], Tensor]) -> None:
    count = torch.stack([history.count for history in histories]) + batch.valid
    mean = torch.stack([history.mean for history in histories if history.mean is not None])
    share = weight(count.clamp_min(1)) * batch.valid
    mean = mean + share.unsqueeze(1).to(mean.dtype) * (batch.c - mean)
    for history, *row in zip(histories, mean, count, strict=True):
        history.mean, history.count = row
