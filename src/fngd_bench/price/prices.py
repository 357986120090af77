"""From raw numbers to prices: medians, ratios to the reference and their intervals. Pure, and without torch."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from fngd_bench.price.ratios import Ratio, paired_ratio
from fngd_bench.price.record import REFERENCE, ImportRecord, Measured, StepRecord


@dataclass(frozen=True)
class Price:
    """What one method's step costs."""

    method: str
    median_ms: float
    mean_ms: float
    """Beside the median, since the median hides what comes back every few steps."""
    time: Ratio
    peak_mib: float | None
    """None where memory was not measured."""
    memory: Ratio | None


def prices(record: StepRecord) -> tuple[Price, ...]:
    """The price of every method of a record, in its order.

    Args:
        record: The record.

    Returns:
        The prices.
    """
    reference = record.of(REFERENCE)
    assert reference is not None
    return tuple(_price(row, reference, record.settings.processes) for row in record.measured)


def _price(row: Measured, reference: Measured, processes: int) -> Price:
    return Price(
        method=row.method,
        median_ms=1e3 * statistics.median(row.seconds),
        mean_ms=1e3 * statistics.fmean(row.seconds),
        time=paired_ratio(row.seconds, reference.seconds, row.period, processes),
        peak_mib=statistics.median(row.peak_bytes) / 2**20 if row.peak_bytes else None,
        memory=paired_ratio(row.peak_bytes, reference.peak_bytes) if row.peak_bytes else None,
    )


def import_price(record: ImportRecord) -> Ratio:
    """`import fngd` in units of `import torch`.

    Args:
        record: The record.

    Returns:
        The ratio.
    """
    return paired_ratio(record.fngd_seconds, record.torch_seconds)
