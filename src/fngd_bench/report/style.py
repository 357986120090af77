"""How a method looks, everywhere on a page: colour, dash and marker. What a figure and a block of figures are.

The colours are those of Okabe and Ito, which the colour-blind tell apart; black and yellow are left out since one
vanishes on a dark page and the other on a light one, and grey stands for the reference. When they are used up they
come back with another dash.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fngd_bench.report.summary import order

Figure = dict[str, Any]
"""A plotly figure as plain data: "data" and "layout"."""

COLOURS = ("#808890", "#d55e00", "#0f7fc0", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "hexagon", "star", "cross")
SECTIONS = {
    "data": "#8a949e",
    "forward": "#6aaed6",
    "backward": "#2b7bba",
    "precondition": "#e08214",
    "update": "#8073ac",
}
"""Colours of a step's sections."""
OTHER_SECTION = "#b2abd2"
BESIDE = {"modebar": {"orientation": "v"}, "margin": {"r": 38}}
"""Layout that puts plotly's buttons to the right of the plot: above it they would cover the legend."""
HEIGHT = 340
"""Of a plot, in pixels."""


@dataclass(frozen=True)
class Look:
    """How one method is drawn."""

    colour: str
    dash: str
    marker: str

    @property
    def faint(self) -> str:
        """The colour of its band."""
        red, green, blue = (int(self.colour[k : k + 2], 16) for k in (1, 3, 5))
        return f"rgba({red},{green},{blue},0.2)"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Something the reader may choose above a plot."""

    label: str
    options: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Block:
    """One place on the page where something is drawn, with the words around it."""

    key: str
    """Its place's name; unique on the page."""
    title: str
    caption: str
    variants: tuple[tuple[Figure, ...], ...]
    """Panels for each combination of the choices' options, the last choice changing fastest."""
    choices: tuple[Choice, ...] = ()
    height: int = HEIGHT
    wide: bool = False
    """Whether it takes the whole width of the page."""

    @property
    def panels(self) -> int:
        """How many plots stand side by side."""
        return max(map(len, self.variants))


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """One look for each method, by the order in which tables name them.

    Args:
        methods: Names of all methods on a page.

    Returns:
        The looks.
    """
    ordered = sorted(set(methods), key=order)
    return {
        name: Look(COLOURS[k % len(COLOURS)], DASHES[k // len(COLOURS) % len(DASHES)], MARKERS[k % len(MARKERS)])
        for k, name in enumerate(ordered)
    }


def plain(text: str) -> str:
    """Text that plotly draws as it is: plotly reads tags and entities in every string.

    Args:
        text: Any text.

    Returns:
        The same with `&`, `<` and `>` as entities.
    """
    return html.escape(text, quote=False)


def short(text: str, length: int = 24) -> str:
    """A label that fits: the middle of a long one is left out.

    Args:
        text: The label.
        length: The most characters.

    Returns:
        The label, safe for plotly.
    """
    half = (length - 1) // 2
    return plain(text if len(text) <= length else f"{text[:half]}…{text[-half:]}")


def clean(value: Any) -> Any:
    """A figure's content with six digits of every number, and nothing that JSON has no word for.

    Args:
        value: Lists, dictionaries, numbers, texts.

    Returns:
        The same; NaN and infinities are None, which plotly leaves blank.
    """
    match value:
        case float():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case dict():
            return {key: clean(item) for key, item in value.items()}
        case list() | tuple():
            return [clean(item) for item in value]
        case _:
            return value
