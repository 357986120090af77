"""What `fngd bench routes` leaves on disk: raw times of every route to each Gram matrix. Never imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fngd_bench.price.surroundings import Surroundings
from fngd_bench.provenance import Provenance


@dataclass(frozen=True, kw_only=True)
class RoutesSettings:
    """What was asked for, with every default resolved."""

    model: str
    classes: int
    batch: int
    budget_bytes: int
    """Scratch memory that one Gram matrix may hold."""
    most_bytes: int
    """The same where it would be slow otherwise."""
    rounds: int
    warmup: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class RouteTimes:
    """One route on one shape."""

    route: str
    expected: float
    """Seconds by the planner's cost model."""
    seconds: tuple[float, ...]
    """Of each timed call, in order; the k-th of every route belong to one round."""


@dataclass(frozen=True, kw_only=True)
class ShapeTimes:
    """Every possible route on one shape."""

    shape: str
    """As `fngd doctor` prints it."""
    sizes: dict[str, int]
    """All that the planner knows of it."""
    layer: str
    """The first layer that has a weight of this shape."""
    count: int
    """Weights of the model that have it."""
    chosen: str
    """The planner's route."""
    routes: tuple[RouteTimes, ...]

    def __post_init__(self) -> None:
        times = [second for route in self.routes for second in route.seconds]
        if not times or min(times) <= 0 or len({len(route.seconds) for route in self.routes}) > 1:
            raise ValueError(f"seconds of {self.shape} must be above 0, as many of one route as of another")
        if self.of(self.chosen) is None:
            raise ValueError(f"the route {self.chosen!r} chosen for {self.shape} must be among those that were timed")
        if self.count < 1:
            raise ValueError(f"count of {self.shape} must be at least 1")

    def of(self, route: str) -> RouteTimes | None:
        """The numbers of one route, None if it was not possible.

        Args:
            route: Its name.

        Returns:
            Its numbers.
        """
        return next((row for row in self.routes if row.route == route), None)


@dataclass(frozen=True, kw_only=True)
class RoutesRecord:
    """The routes of every shape among a model's preconditioned weights."""

    settings: RoutesSettings
    measured: tuple[ShapeTimes, ...]
    surroundings: Surroundings
    provenance: Provenance

    def __post_init__(self) -> None:
        if not self.measured:
            raise ValueError("there must be a shape that was measured")


def read_routes(content: dict[str, Any]) -> RoutesRecord:
    """A record from the content of its file.

    Args:
        content: What `asdict` made of it.

    Returns:
        The record.
    """
    return RoutesRecord(
        settings=RoutesSettings(**content.pop("settings")),
        measured=tuple(map(_shape, content.pop("measured"))),
        surroundings=Surroundings(**content.pop("surroundings")),
        provenance=Provenance(**content.pop("provenance")),
        **content,
    )


def _shape(row: dict[str, Any]) -> ShapeTimes:
    routes = tuple(RouteTimes(**{**route, "seconds": tuple(route["seconds"])}) for route in row["routes"])
    return ShapeTimes(**{**row, "routes": routes})
