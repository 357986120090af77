"""The reading side: a run's record as one object, with what a resumed run has made void left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fngd_bench.errors import InputError
from fngd_bench.files import read_text
from fngd_bench.provenance import Provenance
from fngd_bench.runs.events import (
    SCHEMA,
    Coefficients,
    End,
    Epoch,
    Event,
    Gram,
    Header,
    Resumed,
    RunSettings,
    Skipped,
    Steps,
    decode,
)

FILE = "record.jsonl"
"""Name of the record in a run's folder."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run as its record tells it."""

    path: Path
    header: Header
    losses: dict[int, float]
    """Loss of each step, by its number."""
    step_seconds: dict[int, float]
    epochs: tuple[Epoch, ...]
    coefficients: tuple[Coefficients, ...]
    grams: tuple[Gram, ...]
    skipped: tuple[Skipped, ...]
    resumed: tuple[Resumed, ...]
    end: End | None
    """How it ended; None if it is still under way, or was killed."""
    torn: bool
    """Whether a line was cut short by a crash."""

    @property
    def settings(self) -> RunSettings:
        """What was run."""
        return self.header.settings

    @property
    def provenance(self) -> Provenance:
        """On what it was started."""
        return self.header.provenance

    def reached(self, target: float) -> Epoch | None:
        """The first epoch whose metric is at least `target`; None for a miss.

        Args:
            target: The metric to reach.

        Returns:
            The epoch.
        """
        return next((epoch for epoch in self.epochs if epoch.metric >= target), None)


def read(path: Path) -> Run:
    """Read one record.

    Args:
        path: A `record.jsonl`, or the folder it is in.

    Returns:
        The run.

    Raises:
        InputError: If the file is not a record.
    """
    path = path / FILE if path.is_dir() else path
    lines = read_text(path).split("\n")
    events, torn = _events(path, lines)
    first = events[0] if events else None
    if not isinstance(first, Header):
        raise InputError(f"{path} is not a record of `fngd train`: its first line is no header")
    if first.schema != SCHEMA:
        raise InputError(f"{path} is a record of another version of fngd: train again with this one")
    return _run(path, first, list(_valid(events)), torn=torn)


def find(folders: Sequence[Path]) -> list[Path]:
    """All records below some folders, in order of their names.

    Args:
        folders: Folders of runs, or records themselves.

    Returns:
        The records.

    Raises:
        InputError: If a folder is missing or none holds a record.
    """
    missing = [folder for folder in folders if not folder.exists()]
    if missing:
        raise InputError(f"there is no {missing[0]}: name a folder that `fngd train` or `fngd compare` wrote")
    found = {path for folder in folders for path in ([folder] if folder.is_file() else folder.rglob(FILE))}
    if not found:
        raise InputError(f"no {FILE} below {', '.join(map(str, folders))}: make some with `fngd compare`")
    return sorted(found)


def _events(path: Path, lines: Sequence[str]) -> tuple[list[Event], bool]:
    """The events of all whole lines, and whether a line was cut short: the last, or one before a resumption."""
    events: list[Event] = []
    torn = False
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            event = decode(line)
        except ValueError as error:
            followed = lines[number + 1] if number + 1 < len(lines) else ""
            if followed and not followed.startswith('{"event": "resumed"'):
                raise InputError(f"{path}, line {number + 1}: {error}: the file is damaged") from error
            torn = True
        else:
            events.append(event)
    return events, torn


def _valid(events: Iterable[Event]) -> Iterator[Event]:
    """Events with those that a later resumption made void left out."""
    kept: list[Event] = []
    for event in events:
        if isinstance(event, Resumed):
            ends = {old.epoch: old.step for old in kept if isinstance(old, Epoch)}
            kept = [_cut(old, event.step) for old in kept if _holds(old, event.step, ends)]
        kept.append(event)
    return iter(kept)


def _holds(event: Event, step: int, ends: Mapping[int, int]) -> bool:
    """Whether any of an event holds when steps from `step` on are void; `ends` has the last step of each epoch."""
    match event:
        case Steps():
            return event.first < step
        case Skipped():
            return event.step < step
        case Epoch() | Coefficients() | Gram():
            return ends[event.epoch] <= step
        case Header() | Resumed():
            return True
        case End():
            return False


def _cut(event: Event, step: int) -> Event:
    """The part of an event that speaks of steps before `step`."""
    if not isinstance(event, Steps):
        return event
    count = step - event.first
    return Steps(first=event.first, losses=event.losses[:count], seconds=event.seconds[:count])


def _run(path: Path, header: Header, events: Sequence[Event], *, torn: bool) -> Run:
    steps = [event for event in events if isinstance(event, Steps)]
    ends = [event for event in events if isinstance(event, End)]
    return Run(
        path=path,
        header=header,
        losses={part.first + k: loss for part in steps for k, loss in enumerate(part.losses)},
        step_seconds={part.first + k: second for part in steps for k, second in enumerate(part.seconds)},
        epochs=tuple(event for event in events if isinstance(event, Epoch)),
        coefficients=tuple(event for event in events if isinstance(event, Coefficients)),
        grams=tuple(event for event in events if isinstance(event, Gram)),
        skipped=tuple(event for event in events if isinstance(event, Skipped)),
        resumed=tuple(event for event in events if isinstance(event, Resumed)),
        end=ends[-1] if ends else None,
        torn=torn,
    )
