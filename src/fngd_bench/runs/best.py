"""What a tuning found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best trial of one method."""

    method: str
    trials: int
    """Trials that are over."""
    metric: float
    hyperparameters: dict[str, float]
    """Those that were varied."""
    record: Path
