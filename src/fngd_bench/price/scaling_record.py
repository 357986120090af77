"""What `fngd bench scaling` leaves on disk: raw times and bytes of every method at every size. Never imports torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fngd_bench.price.surroundings import Surroundings
from fngd_bench.provenance import Provenance

AXES = ("batch", "width", "depth")
"""What grows."""


@dataclass(frozen=True, kw_only=True)
class ScalingSettings:
    """What was asked for, with every default resolved."""

    scale: str
    subjects: tuple[str, ...]
    axes: tuple[str, ...]
    methods: tuple[str, ...]
    """In the order asked for; `sgd` is among them."""
    rounds: int
    """The least number of timed rounds at a size; quick steps get more."""
    warmup: int
    peaks: bool
    """Whether peak memory was measured too."""
    seed: int


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size of one subject."""

    subject: str
    axis: str
    """Which of the three below varies in this row of points."""
    batch: int
    width: int
    depth: int

    @property
    def size(self) -> int:
        """The size along the axis."""
        value: int = getattr(self, self.axis)
        return value


@dataclass(frozen=True, kw_only=True)
class PartTimes:
    """The timed steps of one kind; a method whose steps are all alike has one kind."""

    name: str
    share: float
    """Of all steps that are of this kind."""
    seconds: tuple[float, ...]
    """Of each timed step, in order; the k-th of every kind and method belong to one round."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One method at one point."""

    point: Point
    method: str
    parameters: int
    parts: tuple[PartTimes, ...]
    state_bytes: int
    """What the optimizer keeps between two steps: the bytes of all tensors in its `state_dict`."""
    peak_bytes: int | None
    """The most memory of a process that takes a few steps, above what it held before the model was built."""

    def __post_init__(self) -> None:
        times = [second for part in self.parts for second in part.seconds]
        if not times or min(times) <= 0 or len({len(part.seconds) for part in self.parts}) > 1:
            raise ValueError(f"seconds of {self.method} must be above 0, as many of one kind of step as of another")
        if not math.isclose(sum(part.share for part in self.parts), 1.0):
            raise ValueError(f"the kinds of step of {self.method} must add up to all steps")

    @property
    def seconds(self) -> tuple[float, ...]:
        """A mean step over a whole period, round by round: Σ share · seconds of the kinds."""
        rounds = zip(*(part.seconds for part in self.parts), strict=True)
        shares = [part.share for part in self.parts]
        return tuple(sum(share * second for share, second in zip(shares, each, strict=True)) for each in rounds)


@dataclass(frozen=True, kw_only=True)
class ScalingRecord:
    """Time and memory of several methods over sizes."""

    settings: ScalingSettings
    measured: tuple[Measurement, ...]
    surroundings: Surroundings
    provenance: Provenance

    def of(self, subject: str, axis: str, method: str) -> tuple[Measurement, ...]:
        """The measurements of one method along one axis, small sizes first.

        Args:
            subject: What was measured.
            axis: What grows.
            method: Whose.

        Returns:
            One for each size.
        """
        wanted = (subject, axis, method)
        rows = [row for row in self.measured if (row.point.subject, row.point.axis, row.method) == wanted]
        return tuple(sorted(rows, key=lambda row: row.point.size))

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """The pairs of subject and axis that were measured, in order."""
        return tuple(dict.fromkeys((row.point.subject, row.point.axis) for row in self.measured))


def read_scaling(content: dict[str, Any]) -> ScalingRecord:
    """A record from the content of its file.

    Args:
        content: What `asdict` made of it.

    Returns:
        The record.
    """
    wanted = content.pop("settings")
    lists = {name: tuple(wanted[name]) for name in ("subjects", "axes", "methods")}
    return ScalingRecord(
        settings=ScalingSettings(**{**wanted, **lists}),
        measured=tuple(map(_measurement, content.pop("measured"))),
        surroundings=Surroundings(**content.pop("surroundings")),
        provenance=Provenance(**content.pop("provenance")),
        **content,
    )


def _measurement(row: dict[str, Any]) -> Measurement:
    parts = tuple(PartTimes(**{**part, "seconds": tuple(part["seconds"])}) for part in row["parts"])
    return Measurement(**{**row, "point": Point(**row["point"]), "parts": parts})
