"""What went on around a measurement, as records keep it. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

QUIET = 0.1
"""Cores that other processes may keep busy before times are called disturbed."""
CALM = 0.02
"""Of the cores' time: what the host may take before times are called disturbed."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What others took of the machine while the clock ran; None where the system does not say."""

    other_cores: float | None = None
    """Cores that other processes kept busy."""
    stolen: float | None = None
    """Of the cores' time, what the host of a virtual machine took in the rounds that were kept."""
    dropped: int = 0
    """Rounds that were run again, since the host took more."""

    def disturbance(self, what: str) -> str | None:
        """What to say of times that were taken on a busy machine; None on a quiet one.

        Args:
            what: Was timed.

        Returns:
            A sentence.
        """
        if self.other_cores is not None and self.other_cores > QUIET:
            return (
                f"{what} was timed while other processes kept {self.other_cores:.1f} cores busy: do not rely on its "
                "times, measure again on a quiet machine."
            )
        if self.stolen is not None and self.stolen > CALM:
            return (
                f"{what} was timed on a virtual machine from which its host took {100 * self.stolen:.0f} % of the "
                "cores' time: the intervals are wider for it."
            )
        return None


def together(parts: Sequence[Surroundings]) -> Surroundings:
    """What went on around a measurement of several parts of the same length.

    Args:
        parts: At least one.

    Returns:
        The most that others kept busy, what the host took on average, and all that was run again; what one of them
        does not know is not known.
    """
    others = [part.other_cores for part in parts if part.other_cores is not None]
    stolen = [part.stolen for part in parts if part.stolen is not None]
    return Surroundings(
        other_cores=max(others) if len(others) == len(parts) else None,
        stolen=sum(stolen) / len(parts) if len(stolen) == len(parts) else None,
        dropped=sum(part.dropped for part in parts),
    )
