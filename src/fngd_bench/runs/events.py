"""The lines of a run's record, one type each; `encode` and `decode` turn them into JSON and back.

A record is append-only. A run that is resumed from a checkpoint says so (`Resumed`) and repeats what it had not saved:
whatever was said of later steps before that line is void.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from fngd_bench.provenance import Provenance

SCHEMA = 1
"""Goes up when a field changes its meaning."""
Setting = float | int | bool | str | None
"""A hyperparameter's value."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What was run, with every default resolved."""

    workload: str
    scale: str
    method: str
    seed: int
    hyperparameters: dict[str, Setting]
    """What the method's optimizer was given."""
    epochs: int
    batch: int
    steps_per_epoch: int
    schedule: str
    """Name of the learning rate's schedule."""
    metric: str
    """What is judged: "accuracy" in [0, 1], or "BLEU" in [0, 100]."""
    target: float | None
    """The metric to reach; None where the workload has none."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first line: what is run, on what."""

    settings: RunSettings
    provenance: Provenance
    parameters: int
    """Of the model."""
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Consecutive optimizer steps."""

    first: int
    """Number of the first of them; the run's first step is 0."""
    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    """Timed seconds of each: data, forward, backward, update."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The end of an epoch, evaluated."""

    epoch: int
    """Epochs that are over, from 1."""
    step: int
    """Optimizer steps that are over."""
    seconds: float
    """Timed seconds since the run began; evaluation, logging and checkpoints are not in it."""
    sections: dict[str, float]
    """Timed seconds of this epoch by section: data, forward, backward, precondition, update."""
    lr: float
    """Learning rate of the epoch's last step."""
    train_loss: float
    """Mean over the epoch's batches."""
    test_loss: float
    metric: float


@dataclass(frozen=True, kw_only=True)
class LayerCoefficients:
    """What a layer's derived coefficients look like so far; see `fngd.LayerStatistics`."""

    coefficient_mean: float
    coefficient_spread: float
    shared_spread: float
    damping: float
    effective_rank: float
    cosine: float
    batches: int
    skipped: int


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """Coefficient statistics of every preconditioned layer, at the end of an epoch."""

    epoch: int
    layers: dict[str, LayerCoefficients]


@dataclass(frozen=True, kw_only=True)
class Gram:
    """Gram matrices of some layers on one batch of training samples, each divided by its norm; first samples only."""

    epoch: int
    layers: dict[str, tuple[tuple[float, ...], ...]]


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A step whose loss was not finite: no update was made."""

    step: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """The run goes on from a checkpoint; what was said of steps from `step` on is void."""

    step: int
    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class End:
    """The run is over, or was stopped and may be resumed."""

    step: int
    reason: str
    """"finished", "stopped" (may be resumed) or "diverged"."""
    seconds: float
    peak_bytes: int
    """Most memory the process held above what it held before the model was built."""


Event = Header | Steps | Epoch | Coefficients | Gram | Skipped | Resumed | End
_TAGS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind for kind in (Header, Steps, Epoch, Coefficients, Gram, Skipped, Resumed, End)
}


def encode(event: Event) -> str:
    """One line of JSON, without the line's end.

    Args:
        event: The event.

    Returns:
        The line.
    """
    return json.dumps({"event": type(event).__name__.lower(), **asdict(event)}, ensure_ascii=False)


def decode(line: str) -> Event:
    """The event of a line.

    Args:
        line: What `encode` returned.

    Returns:
        The event.

    Raises:
        ValueError: If the line is not one.
    """
    try:
        content: dict[str, Any] = json.loads(line)
        kind = _TAGS[content.pop("event")]
        return kind(**{key: _NESTED.get(key, lambda value: value)(value) for key, value in content.items()})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a line of a run's record ({type(error).__name__}: {error})") from error


def _layers(content: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(map(tuple, layer)) if isinstance(layer, list) else LayerCoefficients(**layer)
        for name, layer in content.items()
    }


_NESTED: dict[str, Any] = {
    "settings": lambda value: RunSettings(**value),
    "provenance": lambda value: Provenance(**value),
    "losses": tuple,
    "seconds": lambda value: tuple(value) if isinstance(value, list) else value,
    "layers": _layers,
}
