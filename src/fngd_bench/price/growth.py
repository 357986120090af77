"""From a record of `fngd bench scaling` to exponents, and what the paper predicts of them. Without torch.

Five quantities are fitted over the sizes of each axis: the time of a step, what of it SGD does not need, the bytes that
the optimizer keeps, what of those SGD does not keep, and peak memory where it was measured. A value is the median over
rounds; differences are taken round by round, before the median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fngd_bench.price.power import Power, fit
from fngd_bench.price.record import REFERENCE
from fngd_bench.price.scaling_record import Measurement, ScalingRecord

STEP, EXTRA, STATE, EXTRA_STATE, PEAK = "step", "extra time", "state", "extra state", "peak"
UNTOLD = 0.01
"""Of a step's time: what two runs of the same thing may differ by, however well each is known."""
UNTOLD_EXTRA = 0.005
"""The same for differences of steps that ran in one round, in units of SGD's step."""
IN_THE_NOISE = 0.5
"""An exponent with a larger standard error says nothing."""
EXACT = 1e-6
"""Relative error of numbers that are counted; above 0, since the fit wants one."""


@dataclass(frozen=True)
class Value:
    """A number with its standard error."""

    value: float
    error: float


@dataclass(frozen=True, kw_only=True)
class Growth:
    """One quantity of one method over one axis."""

    subject: str
    axis: str
    method: str
    quantity: str
    sizes: tuple[int, ...]
    values: tuple[Value, ...]
    law: Power | None
    """None where fewer than three sizes were measured."""
    predicted: str | None
    """The exponent that the paper's complexity table gives, None where it is silent."""

    @property
    def clear(self) -> bool:
        """Whether the exponent is known well enough to be told."""
        return self.law is not None and self.law.error < IN_THE_NOISE

    @property
    def text(self) -> str:
        """The exponent as tables show it."""
        return "–" if self.law is None else exponent_text(self.law, self.sizes[-1])


def exponent_text(law: Power, largest: float) -> str:
    """An exponent with its standard error, and the share that does not grow.

    Args:
        law: The fitted law.
        largest: The largest size.

    Returns:
        Such as "1.02 ± 0.03, 12 % fixed"; "in the noise" where the error is too large to say anything.
    """
    if law.error >= IN_THE_NOISE:
        return "in the noise"
    known = "" if law.error < 5e-4 else f" ± {law.error:.2f}"
    share = 100 * law.fixed(largest)
    fixed = "" if share < 0.5 else f", {share:.0f} % fixed" if share < 99.5 else ", > 99 % fixed"
    number = f"{round(law.exponent, 2) + 0.0:.2f}".replace("-", "−")  # + 0.0: no minus before a zero
    return f"{number}{known}{fixed}"


# Exponents of the terms in the paper's table 1, for M samples and a layer of dimension D: the least and the largest,
# since which of them wins depends on M/D and on the intervals. A network is a sum of such layers.
_TIME = {
    "fngd-share": {"batch": "1", "width": "1"},  # MD
    "kfac": {"batch": "0 to 1", "width": "2 to 3"},  # 2MD² + 2D³ + 2D³
    "eva": {"batch": "0 to 1", "width": "1 to 2"},  # 2MD + 2D²
    "shampoo": {"batch": "0", "width": "3"},  # 2D³ + 2D³ + 2D³
}
_MEMORY = {
    "fngd-share": {"batch": "1", "width": "0"},  # M
    "kfac": {"batch": "0", "width": "2"},  # 2D²
    "eva": {"batch": "0", "width": "1"},  # 2D
    "shampoo": {"batch": "0", "width": "2"},  # 2D²
}
_PREDICTED = {EXTRA: _TIME, EXTRA_STATE: _MEMORY}


def predicted(quantity: str, method: str, axis: str) -> str | None:
    """What the paper's complexity table says.

    Args:
        quantity: Which.
        method: Whose.
        axis: What grows.

    Returns:
        An exponent or a range of them; None where the table is silent.
    """
    row = _PREDICTED.get(quantity, {}).get(method)
    return None if row is None else row.get(axis, "1")


def growths(record: ScalingRecord) -> tuple[Growth, ...]:
    """Every quantity of every method over every axis.

    Args:
        record: The record.

    Returns:
        Subject by subject, axis by axis, method by method.
    """
    return tuple(
        growth
        for subject, axis in record.rows
        for method in record.settings.methods
        for growth in _of_method(record, subject, axis, method)
    )


def _of_method(record: ScalingRecord, subject: str, axis: str, method: str) -> list[Growth]:
    rows, reference = record.of(subject, axis, method), record.of(subject, axis, REFERENCE)
    pairs = list(zip(rows, reference, strict=True))
    quantities = {STEP: [_step(row) for row in rows], STATE: [_counted(row.state_bytes) for row in rows]}
    if method != REFERENCE:
        quantities[EXTRA] = [_extra(row, base) for row, base in pairs]
        quantities[EXTRA_STATE] = [_counted(row.state_bytes - base.state_bytes) for row, base in pairs]
    if all(row.peak_bytes is not None for row in rows):
        quantities[PEAK] = [Value(peak, UNTOLD * peak) for row in rows if (peak := row.peak_bytes) is not None]
    sizes = tuple(row.point.size for row in rows)
    return [
        Growth(
            subject=subject,
            axis=axis,
            method=method,
            quantity=name,
            sizes=sizes,
            values=tuple(values),
            law=_law(sizes, values),
            predicted=predicted(name, method, axis),
        )
        for name, values in quantities.items()
    ]


def _law(sizes: Sequence[int], values: Sequence[Value]) -> Power | None:
    if len(sizes) < 3:
        return None
    return fit(sizes, [each.value for each in values], [each.error for each in values])


def _step(row: Measurement) -> Value:
    middle = statistics.median(row.seconds)
    return Value(middle, math.hypot(_error(row.seconds), UNTOLD * middle))


def _extra(row: Measurement, reference: Measurement) -> Value:
    differences = [mine - sgd for mine, sgd in zip(row.seconds, reference.seconds, strict=True)]
    untold = UNTOLD_EXTRA * statistics.median(reference.seconds)
    return Value(statistics.median(differences), math.hypot(_error(differences), untold))


def _counted(count: int) -> Value:
    return Value(count, EXACT * max(1, abs(count)))


def _error(values: Sequence[float]) -> float:
    """Standard error of the median, from the median distance to it as for a normal distribution; 0 for one value."""
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return math.sqrt(math.pi / 2) * spread / math.sqrt(len(values))
