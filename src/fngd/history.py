r"""What the batches said of a layer: the running mean c̃ that later steps share, and the measures of `statistics()`.

When a layer's gradient is due it notes down a `Report`, a few vectors; what follows from it is worked out by `settle`,
for all layers and some steps at once. Layers are many and these tensors small: one by one, the calls alone would take
longer than a small layer's gradient. When it is done does not show in the result, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fngd.coefficients import Solution
from fngd.plain import Number, Truth, stacked


class Report(NamedTuple):
    """What a layer knows of a batch when its gradient is due; of several layers and batches, with these in front."""

    c: Tensor
    """The coefficients, (M,)."""
    valid: Truth
    """Whether they could be derived; if not, c is to be ignored."""
    K1: Tensor
    Kc: Tensor
    trace: Tensor
    """Of K, on whose scale all but c and `unit` are."""
    norm: Number
    """‖K‖_F."""
    damping: Number
    """λ on the scale of K."""
    unit: Number
    """The square of this turns numbers on the scale of K into numbers on the scale of the true gradients."""


def report(K: Tensor, solution: Solution, unit: Number) -> Report:
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
    c, _, K1, Kc, trace, norm, damping = (torch.as_tensor(value, dtype=torch.float64) for value in batch[:-1])
    spread, mean = torch.std_mean(c, -1, correction=0)
    lengths = ((c * Kc).sum(-1).clamp_min(0) * K1.sum(-1).clamp_min(0)).sqrt()
    return Measures(mean, spread, damping * batch.unit**2, (trace / norm) ** 2, (K1 * c).sum(-1) / lengths)


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

    def make_room(self, batches: Sequence[Report]) -> bool:
        """Make c̃ as long as some batches of one size, if it is to be, and say whether their coefficients enter it.

        Batches shorter than c̃ (the last of an epoch) are measured but do not enter c̃; longer ones start it anew, if
        one is valid: only then is a tensor's value waited for.
        """
        c = batches[0].c
        if (self.mean is None or len(self.mean) < len(c)) and any(bool(batch.valid) for batch in batches):
            self.mean, self.count = torch.zeros_like(c), torch.zeros_like(c[0])
        return self.mean is not None and len(self.mean) == len(c)


def settle(reports: Iterable[tuple[History, Report]], weight: Callable[[Tensor], Tensor]) -> None:
    """Take in the batches of several layers, each layer's in their order; what is alike is worked out together.

    Where a batch is not valid nothing but `skipped` changes; whether it is, is a tensor, so that nothing waits for it.

    Args:
        reports: Histories, each with what its layer has reported; a history may come more than once.
        weight: The policy's share of the newest batch in c̃, a function of the numbers of batches.
    """
    queues: dict[int, tuple[History, list[Report]]] = {}
    for history, batch in reports:
        queues.setdefault(id(history), (history, []))[1].append(batch)
    while queues:
        alike: dict[Any, list[tuple[History, list[Report]]]] = {}
        for history, queue in queues.values():
            batches = list(takewhile(partial(_alike, queue[0]), queue))
            del queue[: len(batches)]
            key = history.make_room(batches), len(batches), *_kind(batches[0])
            alike.setdefault(key, []).append((history, batches))
        for (accepted, *_), group in alike.items():
            _take_in(group, weight if accepted else None)
        queues = {key: (history, queue) for key, (history, queue) in queues.items() if queue}


def _kind(batch: Report) -> tuple[int, torch.dtype, torch.device]:
    return len(batch.c), batch.c.dtype, batch.c.device


def _alike(one: Report, other: Report) -> bool:
    return _kind(one) == _kind(other)


def _take_in(group: Sequence[tuple[History, Sequence[Report]]], weight: Callable[[Tensor], Tensor] | None) -> None:
    """Take in the same number of batches of each of several layers; without a weight they do not enter c̃."""
    histories, reports = [history for history, _ in group], [batch for _, batches in group for batch in batches]
    batches = Report(*(stacked(list(values)).unflatten(0, (len(group), -1)) for values in zip(*reports, strict=True)))
    _add_measures(histories, batches)
    if weight is not None:
        _add_coefficients(histories, batches, weight)


def _add_measures(histories: Sequence[History], batches: Report) -> None:
    def table(name: str) -> Tensor:
        return torch.stack([getattr(history, name).to(batches.c.device) for history in histories])

    valid, values, totals = torch.as_tensor(batches.valid), torch.stack(measure(batches), -1), table("totals")
    has_value = valid.unsqueeze(-1) & values.isfinite()
    for summand in torch.where(has_value, values, 0.0).unbind(1):
        totals = totals + summand
    counts = [table("counted") + has_value.sum(1), table("batches") + valid.sum(1), table("skipped") + (~valid).sum(1)]
    for history, *row in zip(histories, totals, *counts, strict=True):
        history.totals, history.counted, history.batches, history.skipped = row


def _add_coefficients(histories: Sequence[History], batches: Report, weight: Callable[[Tensor], Tensor]) -> None:
    valid = torch.as_tensor(batches.valid)
    count = torch.stack([history.count for history in histories]).unsqueeze(1) + valid.cumsum(1)
    mean = torch.stack([history.mean for history in histories if history.mean is not None])
    share = weight(count.clamp_min(1).flatten()).view(count.shape) * valid
    for part, c in zip(share.unsqueeze(2).to(mean.dtype).unbind(1), batches.c.unbind(1), strict=True):
        mean = mean + part * (c - mean)
    for history, *row in zip(histories, mean, count[:, -1], strict=True):
        history.mean, history.count = row
