"""Which price record belongs to which group of runs, and which of its methods to which method that was trained.

`fngd bench step` prices a model, `fngd train` trains a workload. They belong together when the workload's name ends in
the model's, the batch is the same and so is the number of parameters, but for a head of another size.
"""

from __future__ import annotations

from collections.abc import Sequence

from fngd_bench.price.prices import Price, prices
from fngd_bench.price.record import StepRecord
from fngd_bench.runs.reader import Run

HEAD = 0.1
"""Parameters may differ by this share: the classes of a data set change the last layer only."""
PRICED = {"sgd-m": "sgd", "fngd": "fngd-share", "ngd": "fngd-derive"}
"""Names in price records where they are not the same. Trained with `fngd`, nearly all steps are sharing ones."""


def match(runs: Sequence[Run], records: Sequence[StepRecord]) -> StepRecord | None:
    """The price record of a group: the newest that fits all of its runs.

    Args:
        runs: Runs of one workload at one scale.
        records: Price records.

    Returns:
        The record; None if none fits.
    """
    fitting = [record for record in records if all(_fits(run, record) for run in runs)]
    return max(fitting, key=lambda record: record.provenance.date, default=None)


def price_of(record: StepRecord | None, method: str) -> Price | None:
    """What a record says of a method.

    Args:
        record: The record.
        method: The method's name in training.

    Returns:
        Its price; None if there is no record, or it was not measured there.
    """
    if record is None:
        return None
    return next((price for price in prices(record) if price.method == PRICED.get(method, method)), None)


def _fits(run: Run, record: StepRecord) -> bool:
    named = run.settings.workload.endswith(f"-{record.settings.model}") and not record.settings.compiled
    gap = abs(run.header.parameters - record.parameters)
    return named and run.settings.batch == record.settings.batch and gap <= HEAD * record.parameters
