"""How far a run is: what the loop says and the terminal shows."""

from __future__ import annotations

from typing import NamedTuple


class Progress(NamedTuple):
    """How far a run is."""

    step: int
    total: int
    epoch: float
    """Epochs that are over, the one under way in part."""
    loss: float
    metric_name: str
    metric: float | None
    """Of the latest test; None before the first."""
    samples_per_second: float
