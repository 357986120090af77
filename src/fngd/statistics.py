"""What the derived batches say of a layer, as plain numbers: does the position of a sample carry anything?

Samples are shuffled, so a position in the batch has no identity, and the mean of c over an epoch tends to one constant
for each layer. `shared_spread` beside `coefficient_spread` shows how far that has gone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fngd.history import History


@dataclass(frozen=True)
class LayerStatistics:
    """What the derived batches said of one layer; each number is a mean over them.

    Example:
        >>> import torch, fngd
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = fngd.FNGD(model, lr=0.1, derive_steps=10)
        >>> torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
        >>> statistics = optimizer.statistics()[""]
        >>> statistics.batches, statistics.skipped
        (1, 0)
    """

    coefficient_mean: float
    """Mean of c inside a batch."""
    coefficient_spread: float
    """Standard deviation of c inside a batch."""
    shared_spread: float
    """Standard deviation of c̃ over the positions: what sharing can still tell apart."""
    damping: float
    """λ."""
    effective_rank: float
    """(tr K)²/‖K‖_F², between 1 and M."""
    cosine: float
    """Between the weighted and the plain gradient."""
    batches: int
    """Batches that were derived; where several processes have averaged theirs, a process's."""
    skipped: int
    """Batches whose Gram matrix was not finite: they took the plain gradient and left c̃ alone; rounded up likewise."""


def statistics_of(history: History) -> LayerStatistics:
    """The statistics of a layer that has derived at least one batch.

    Args:
        history: The layer's history.

    Returns:
        Plain numbers.
    """
    assert history.mean is not None
    mean, spread, damping, rank, cosine = (float(value) for value in history.measures)
    return LayerStatistics(
        coefficient_mean=mean,
        coefficient_spread=spread,
        shared_spread=float(history.mean.std(correction=0)),
        damping=damping,
        effective_rank=rank,
        cosine=cosine,
        batches=round(float(history.batches)),
        skipped=math.ceil(round(float(history.skipped), 4)),
    )
