"""What a benchmark leaves on disk: raw times, settings and provenance, enough to make every table again.

Reading and writing records never imports torch, so that tables are made anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fngd_bench.errors import InputError
from fngd_bench.files import read_text, write_text
from fngd_bench.price.routes_record import RoutesRecord, read_routes
from fngd_bench.price.scaling_record import ScalingRecord, read_scaling
from fngd_bench.price.surroundings import Surroundings
from fngd_bench.provenance import Provenance

REFERENCE = "sgd"
"""Ratios are to this method: fused SGD with momentum."""
SCHEMA = 2
"""Goes up when a field changes its meaning."""


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """What `fngd bench step` was asked for, with every default resolved."""

    model: str
    classes: int
    batch: int
    image_size: int | None
    """Side of the images; None for token sequences."""
    methods: tuple[str, ...]
    """In the order asked for; `sgd` is among them."""
    steps: int
    warmup: int
    memory_runs: int
    seed: int
    compiled: bool = False
    """Whether every method's model is compiled. Memory is not measured then: the compiler's own would be in it."""
    processes: int = 1
    """Fresh processes that the steps are spread over, the same number in each."""

    @property
    def subject(self) -> str:
        """What was timed."""
        return f"{self.model}, compiled" if self.compiled else self.model


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The raw numbers of one method."""

    method: str
    period: int
    """Steps after which the method's costs repeat."""
    seconds: tuple[float, ...]
    """Of each timed step, in order."""
    peak_bytes: tuple[int, ...]
    """Of each memory run, above what its process held before the model was built."""

    def __post_init__(self) -> None:
        if not self.seconds or min(self.seconds) <= 0 or len(self.seconds) % self.period:
            raise ValueError(f"seconds of {self.method} must be above 0 and fill periods of {self.period}")
        if min(self.peak_bytes, default=1) <= 0:
            raise ValueError(f"peak_bytes of {self.method} must be above 0")


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """The price of a step of several methods on one model."""

    settings: StepSettings
    parameters: int
    measured: tuple[Measured, ...]
    surroundings: Surroundings
    provenance: Provenance

    def __post_init__(self) -> None:
        if self.of(REFERENCE) is None:
            raise ValueError(f"there is no {REFERENCE!r} among the methods to compare with")
        if len({(len(row.seconds), len(row.peak_bytes)) for row in self.measured}) > 1:
            raise ValueError("every method must have as many steps and memory runs as the others")
        if any(len(row.seconds) % (self.settings.processes * row.period) for row in self.measured):
            raise ValueError("seconds must be those of as many whole periods in each process")
        if {len(row.peak_bytes) for row in self.measured} != {self.settings.memory_runs}:
            raise ValueError("peak_bytes must be those of memory_runs")

    def of(self, method: str) -> Measured | None:
        """The numbers of one method, None if it was not measured.

        Args:
            method: Its name.

        Returns:
            Its numbers.
        """
        return next((row for row in self.measured if row.method == method), None)


@dataclass(frozen=True, kw_only=True)
class ImportRecord:
    """Seconds of `import fngd` and of `import torch`, each in a fresh process, in pairs."""

    fngd_seconds: tuple[float, ...]
    torch_seconds: tuple[float, ...]
    seed: int
    provenance: Provenance

    def __post_init__(self) -> None:
        times = (*self.fngd_seconds, *self.torch_seconds)
        if not times or min(times) <= 0 or len(self.fngd_seconds) != len(self.torch_seconds):
            raise ValueError("fngd_seconds and torch_seconds must be pairs of numbers above 0")


Record = StepRecord | ImportRecord | ScalingRecord | RoutesRecord


def write(record: Record, path: Path) -> None:
    """Write a record as JSON, in one go.

    Args:
        record: The record.
        path: The file.
    """
    content = {"kind": _KINDS[type(record)], "schema": SCHEMA, **asdict(record)}
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read(path: Path) -> Record:
    """Read a record.

    Args:
        path: A file that `write` wrote.

    Returns:
        The record.

    Raises:
        InputError: If it is not one.
    """
    try:
        content = json.loads(read_text(path))
        if content.pop("schema") != SCHEMA:
            raise InputError(f"{path} is a record of another version of fngd: measure again with this one")
        return _READERS[content.pop("kind")](content)
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path} is not a record of `fngd bench` ({type(error).__name__}: {error}): make one with `fngd bench "
            "step --json FILE`"
        ) from error


def read_scaling_record(path: Path) -> ScalingRecord:
    """Read a record of `fngd bench scaling`.

    Args:
        path: A file that `write` wrote.

    Returns:
        The record.

    Raises:
        InputError: If it is not one.
    """
    record = read(path)
    if not isinstance(record, ScalingRecord):
        raise InputError(f"{path} is a record of another benchmark: name one that `fngd bench scaling --json` wrote")
    return record


def _step(content: dict[str, Any]) -> StepRecord:
    measured = tuple(
        Measured(**{**row, "seconds": tuple(row["seconds"]), "peak_bytes": tuple(row["peak_bytes"])})
        for row in content.pop("measured")
    )
    settings = content.pop("settings")
    settings = StepSettings(**{**settings, "methods": tuple(settings["methods"])})
    return StepRecord(
        settings=settings,
        measured=measured,
        surroundings=Surroundings(**content.pop("surroundings")),
        provenance=Provenance(**content.pop("provenance")),
        **content,
    )


def _import(content: dict[str, Any]) -> ImportRecord:
    return ImportRecord(
        fngd_seconds=tuple(content.pop("fngd_seconds")),
        torch_seconds=tuple(content.pop("torch_seconds")),
        provenance=Provenance(**content.pop("provenance")),
        **content,
    )


_READERS: dict[str, Callable[[dict[str, Any]], Record]] = {
    "step": _step,
    "import": _import,
    "scaling": read_scaling,
    "routes": read_routes,
}
_KINDS: dict[type[Record], str] = {
    StepRecord: "step",
    ImportRecord: "import",
    ScalingRecord: "scaling",
    RoutesRecord: "routes",
}
