"""Exponents: a + b·sizeᵖ through measured values, by weighted least squares. Needs numpy, not torch.

For a given p the model is linear in a and b, so the sum of squares is a function of p alone; its least value is found
on a grid that is refined around its best point. The pure power law, a = 0, is tried first. An overhead that does not
grow is let in only if the values ask for it: a free a takes p's certainty away. Neither a nor b may be negative.

The standard error of p comes from the linearised model. Where the values lie further off the curve than their own
errors allow, a relative error that all have in common is added until they do not: the law is then only a summary of
what was measured, and no point may pull it to itself because its rounds happened to agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
LEAST, MOST = -1.0, 6.0
"""Exponents that are looked for."""
LEAST_WITH_OFFSET = 0.1
"""Below this a power can hardly be told from a constant beside it."""
SIGNIFICANT = 4.0
"""A constant must lower the sum of squares by two standard errors' worth."""
COMMON = (0.0, *(1e-6 * 2**k for k in range(19)))
"""Relative errors that are tried; the last one is 26 %."""
_GRID, _ROUNDS = 71, 8


@dataclass(frozen=True)
class Power:
    """A fitted law a + b·sizeᵖ."""

    exponent: float
    error: float
    """Standard error of the exponent; infinite where the values do not determine it."""
    offset: float
    """a."""
    factor: float
    """b."""

    def at(self, size: float) -> float:
        """The law's value.

        Args:
            size: Where.

        Returns:
            a + b·sizeᵖ.
        """
        return self.offset + self.factor * math.pow(size, self.exponent)

    def fixed(self, size: float) -> float:
        """How much of the law's value does not grow.

        Args:
            size: Where.

        Returns:
            a's share, from 0 to 1.
        """
        return self.offset / self.at(size) if self.offset else 0.0


def fit(sizes: Sequence[float], values: Sequence[float], errors: Sequence[float]) -> Power:
    """The law that fits best.

    Args:
        sizes: At least three different sizes above 0.
        values: What was measured there; noise may have made some negative.
        errors: Their standard errors, above 0.

    Returns:
        The law.

    Raises:
        ValueError: If the sizes are too few or not above 0, or the lengths differ.
    """
    if len(set(sizes)) < 3 or min(sizes) <= 0 or not len(sizes) == len(values) == len(errors) or min(errors) <= 0:
        raise ValueError(
            f"sizes={list(sizes)}, {len(values)} values and {len(errors)} errors: a fit needs at least three different "
            "sizes above 0, and a value with an error above 0 for each"
        )
    with_offset = len(sizes) > 3  # three numbers through three points say nothing of their errors
    for relative in COMMON:
        data = _Data(sizes, values, np.hypot(errors, relative * np.abs(values)))
        widest = data.best(with_offset=with_offset)
        if data.scale(widest, with_offset=with_offset) == 1:
            break
    pure = data.best(with_offset=False)
    gain = data.misfit(pure, with_offset=False) - data.misfit(widest, with_offset=with_offset)
    needed = gain > SIGNIFICANT * data.scale(widest, with_offset=with_offset)
    return data.law(widest if needed else pure, with_offset=needed)


class _Data:
    """Values over sizes, in units that keep the arithmetic near 1."""

    def __init__(self, sizes: Sequence[float], values: Sequence[float], errors: Array) -> None:
        self.unit_size = math.exp(float(np.mean(np.log(sizes))))
        self.unit_value = max(float(np.max(np.abs(values))), float(np.max(errors)))
        self.x = np.asarray(sizes, float) / self.unit_size
        self.y = np.asarray(values, float) / self.unit_value
        self.weight = self.unit_value / np.asarray(errors, float)

    def coefficients(self, p: Array, *, with_offset: bool) -> tuple[Array, Array]:
        """The best a and b for each exponent, neither of them negative."""
        one, power, y = self.weight, self.weight * self.x ** p[:, None], self.weight * self.y
        squares, products = np.sum(power**2, axis=1), power @ y
        alone = np.maximum(0.0, products / squares)
        if not with_offset:
            return np.zeros_like(p), alone
        mixed, total = power @ one, one @ one
        determinant = total * squares - mixed**2
        with np.errstate(divide="ignore", invalid="ignore"):  # a power like a constant: the corners decide
            a = (squares * (one @ y) - mixed * products) / determinant
            b = (total * products - mixed * (one @ y)) / determinant
        inside = (determinant > 1e-12 * total * squares) & (a >= 0) & (b >= 0)
        constant = max(0.0, float(one @ y / total))
        flat = np.sum((constant * one - y) ** 2) < np.sum((alone[:, None] * power - y) ** 2, axis=1)
        return (
            np.where(inside, a, np.where(flat, constant, 0.0)),
            np.where(inside, b, np.where(flat, 0.0, alone)),
        )

    def misfits(self, p: Array, *, with_offset: bool) -> Array:
        """The least weighted sum of squares for each exponent."""
        a, b = self.coefficients(p, with_offset=with_offset)
        law = a[:, None] + b[:, None] * self.x ** p[:, None]
        return np.asarray(np.sum((self.weight * (law - self.y)) ** 2, axis=1))

    def misfit(self, p: float, *, with_offset: bool) -> float:
        """The least weighted sum of squares for one exponent."""
        return float(self.misfits(np.array([p]), with_offset=with_offset)[0])

    def best(self, *, with_offset: bool) -> float:
        """The exponent with the least misfit."""
        least, most = (LEAST_WITH_OFFSET if with_offset else LEAST), MOST
        low, high = least, most
        for _ in range(_ROUNDS):
            grid = np.linspace(low, high, _GRID)
            found = float(grid[np.argmin(self.misfits(grid, with_offset=with_offset))])
            step = (high - low) / (_GRID - 1)
            low, high = max(least, found - 2 * step), min(most, found + 2 * step)
        return found

    def scale(self, p: float, *, with_offset: bool) -> float:
        """By how much squared errors must still be raised to explain the misfit; never lowered."""
        freedom = len(self.x) - (3 if with_offset else 2)
        return max(1.0, self.misfit(p, with_offset=with_offset) / freedom)

    def law(self, p: float, *, with_offset: bool) -> Power:
        """The law with an exponent, in the units of the measurement."""
        a, b = (float(value[0]) for value in self.coefficients(np.array([p]), with_offset=with_offset))
        factor = b * self.unit_value / self.unit_size**p
        return Power(p, self._error(p, b, with_offset=with_offset), a * self.unit_value, factor)

    def _error(self, p: float, b: float, *, with_offset: bool) -> float:
        columns = [self.x**p, b * self.x**p * np.log(self.x), *([np.ones_like(self.x)] if with_offset else [])]
        slopes = self.weight[:, None] * np.stack(columns, axis=1)
        lengths = np.linalg.norm(slopes, axis=0)
        if lengths.min() == 0 or p in {LEAST, MOST}:
            return math.inf
        precision = (slopes / lengths).T @ (slopes / lengths)
        if np.linalg.cond(precision) > 1e12:
            return math.inf
        variance = np.linalg.inv(precision)[1, 1] / lengths[1] ** 2 * self.scale(p, with_offset=with_offset)
        return math.sqrt(float(variance))
