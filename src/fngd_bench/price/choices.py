"""How good the planner's choices were: from a record of `fngd bench routes`, shape by shape. Without torch.

A route's time is the median over rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fngd_bench.price.routes_record import RoutesRecord, ShapeTimes

TOLERANCE = 0.1
"""What the planner's route may cost above the best one."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the planner chose for one shape, and what would have been best."""

    shape: str
    count: int
    chosen: str
    best: str
    milliseconds: dict[str, float]
    """Of each route that was possible."""
    expected_ms: float
    """What the cost model said of the chosen route."""

    @property
    def ratio(self) -> float:
        """The chosen route's time over the best one's."""
        return self.milliseconds[self.chosen] / self.milliseconds[self.best]

    @property
    def good(self) -> bool:
        """Whether the chosen route is as quick as the best one, within the tolerance."""
        return self.ratio <= 1 + TOLERANCE


def choices(record: RoutesRecord) -> tuple[Choice, ...]:
    """The planner's choice for every shape of a record, in its order.

    Args:
        record: The record.

    Returns:
        The choices.
    """
    return tuple(map(_choice, record.measured))


def _choice(row: ShapeTimes) -> Choice:
    milliseconds = {route.route: 1e3 * statistics.median(route.seconds) for route in row.routes}
    chosen = row.of(row.chosen)
    assert chosen is not None
    return Choice(
        shape=row.shape,
        count=row.count,
        chosen=row.chosen,
        best=min(milliseconds, key=milliseconds.__getitem__),
        milliseconds=milliseconds,
        expected_ms=1e3 * chosen.expected,
    )


def extra(found: Sequence[Choice]) -> float:
    """What all choices together cost above the best ones, as a share: every weight of the model counts once.

    Args:
        found: The choices.

    Returns:
        0 if every choice was the best.
    """
    chosen = sum(choice.count * choice.milliseconds[choice.chosen] for choice in found)
    return chosen / sum(choice.count * choice.milliseconds[choice.best] for choice in found) - 1


def answer(found: Sequence[Choice]) -> str:
    """All choices in one sentence.

    Args:
        found: The choices.

    Returns:
        The sentence; it names the shapes that miss.
    """
    missed = [choice for choice in found if not choice.good]
    names = ", ".join(f"{each.shape} ({each.chosen} takes {each.ratio:.2f} × {each.best}'s time)" for each in missed)
    return (
        f"The planner's choice is within {100 * TOLERANCE:.0f} % of the best route on {len(found) - len(missed)} of "
        f"{len(found)} shapes, and costs {100 * extra(found):.1f} % more than the best choice everywhere, over one "
        f"backward pass{f'; it misses on {names}' if missed else ''}."
    )
