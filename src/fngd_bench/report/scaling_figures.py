"""Figures of `fngd bench scaling`: a quantity over a size, both logarithmic, so that an exponent is a slope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fngd_bench.price.growth import EXTRA, EXTRA_STATE, PEAK, STEP, Growth
from fngd_bench.report.style import Block, Figure, Look, looks, plain
from fngd_bench.report.summary import REFERENCE

PANELS = {
    STEP: ("time of a step, ms", 1e3, "ms"),
    EXTRA: ("time beyond sgd’s, ms", 1e3, "ms"),
    EXTRA_STATE: ("state beyond sgd’s, KiB", 2**-10, "KiB"),
    PEAK: ("peak memory, MiB", 2**-20, "MiB"),
}
"""What is drawn, with its title and its unit."""
AXIS_TITLES = {"batch": "samples of a batch", "width": "width", "depth": "layers"}
HEIGHT = 400
_CURVE = 40
"""Points of a fitted curve."""


def method_looks(methods: Sequence[str]) -> dict[str, Look]:
    """How each method is drawn; SGD as the reference is on every page.

    Args:
        methods: Names as the benchmark has them.

    Returns:
        The looks.
    """
    names = {method: REFERENCE if method == "sgd" else method for method in methods}
    drawn = looks(names.values())
    return {method: drawn[name] for method, name in names.items()}


def block(key: str, found: Sequence[Growth], drawn: Mapping[str, Look]) -> Block:
    """All quantities over one axis, side by side.

    Args:
        key: The block's key.
        found: The growths of one subject over one axis.
        drawn: How methods are drawn.

    Returns:
        The block.
    """
    axis = found[0].axis
    panels = [name for name in PANELS if any(growth.quantity == name for growth in found)]
    return Block(
        key=key,
        title=f"over {axis}",
        caption="Points are medians over rounds with their standard errors, lines the fitted laws; a straight line "
        "is a power of the size, its slope the exponent. What is not above zero, or whose exponent is in the noise, "
        "has no point or no line.",
        variants=(tuple(_figure(name, found, drawn) for name in panels),),
        height=HEIGHT,
        wide=True,
    )


def _figure(quantity: str, found: Sequence[Growth], drawn: Mapping[str, Look]) -> Figure:
    title, factor, unit = PANELS[quantity]
    shown = [growth for growth in found if growth.quantity == quantity]
    traces = [trace for growth in shown for trace in _traces(growth, drawn[growth.method], factor, unit)]
    sizes = sorted({size for growth in found for size in growth.sizes})
    x = {
        "type": "log",
        "title": {"text": AXIS_TITLES[found[0].axis]},
        "tickvals": sizes,
        "ticktext": list(map(str, sizes)),
    }
    y = {"type": "log", "title": {"text": title}, "exponentformat": "power", **_ticks(traces)}
    return {"data": traces, "layout": {"xaxis": x, "yaxis": y, "hovermode": "closest"}}


def _ticks(traces: Sequence[Figure]) -> Figure:
    """Powers of ten where many are in sight, 1, 2 and 5 where few are; plotly's own where even those would be rare."""
    values = [value for trace in traces for value in trace["y"] if value > 0]
    span = max(values) / min(values) if values else 1.0
    if span > 300:
        return {"dtick": 1}
    return {"dtick": "D2", "tickformat": "~g"} if span > 5 else {"tickformat": ".4~g"}


def _traces(growth: Growth, look: Look, factor: float, unit: str) -> list[Figure]:
    common = {"type": "scatter", "legendgroup": growth.method, "name": plain(growth.method)}
    parts = {"points": _points(growth, look, factor, unit), "law": _law(growth, look, factor)}
    return [part | common | {"uid": f"{growth.method}-{name}"} for name, part in parts.items()]


def _points(growth: Growth, look: Look, factor: float, unit: str) -> Figure:
    above = [(size, each) for size, each in zip(growth.sizes, growth.values, strict=True) if each.value > 0]
    return {
        "mode": "markers",
        "x": [size for size, _ in above],
        "y": [factor * each.value for _, each in above],
        "error_y": {
            "type": "data",
            "array": [factor * each.error for _, each in above],
            # An error bar that reached zero would reach down to the end of the page.
            "arrayminus": [factor * min(each.error, 0.9 * each.value) for _, each in above],
            "symmetric": False,
            "thickness": 1,
            "width": 3,
            "color": look.colour,
        },
        "hovertemplate": f"%{{x}}: %{{y:.4g}} {unit}<br>exponent {plain(growth.text)}",
        "marker": {"color": look.colour, "symbol": look.marker, "size": 7},
    }


def _law(growth: Growth, look: Look, factor: float) -> Figure:
    drawn = growth.law is not None and growth.clear
    x = np.geomspace(growth.sizes[0], growth.sizes[-1], _CURVE).tolist() if drawn else []
    return {
        "mode": "lines",
        "x": x,
        "y": [factor * growth.law.at(size) for size in x] if growth.law is not None else [],
        "line": {"color": look.colour, "dash": look.dash, "width": 1.5},
        "hoverinfo": "skip",
        "showlegend": False,
    }
