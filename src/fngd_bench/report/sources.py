"""What a report is made of: the run records and the price records below some folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fngd_bench.errors import InputError
from fngd_bench.price import record as price_record
from fngd_bench.price.record import StepRecord
from fngd_bench.runs import reader
from fngd_bench.runs.reader import Run


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Everything that was found."""

    runs: tuple[Run, ...]
    prices: tuple[StepRecord, ...]


def gather(places: Sequence[Path]) -> Sources:
    """Read all records.

    Args:
        places: Folders, run records, or price records (`*.json`).

    Returns:
        The runs and prices; of other JSON files in the folders no notice is taken.

    Raises:
        InputError: If there are none, or one is damaged.
    """
    named = [place for place in places if place.suffix == ".json" and not place.is_dir()]
    folders = [place for place in places if place.is_dir()]
    with_runs = [place for place in places if place not in named and (place not in folders or _holds_runs(place))]
    runs = tuple(reader.read(path) for path in reader.find(with_runs)) if with_runs else ()
    below = sorted({path for folder in folders for path in folder.rglob("*.json") if _is_price(path)})
    read = [price_record.read(path) for path in dict.fromkeys([*named, *below])]
    prices = tuple(record for record in read if isinstance(record, StepRecord))
    if not runs and not prices:
        wrong = ", ".join(map(str, places))
        raise InputError(f"neither runs nor prices of a step below {wrong}: make some with `fngd compare`")
    return Sources(runs=runs, prices=prices)


def _holds_runs(folder: Path) -> bool:
    return any(folder.rglob(reader.FILE))


def _is_price(path: Path) -> bool:
    """Whether a file says that it is a price record; if it does and is damaged, reading it tells the user."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("kind") == "step" and "measured" in content
