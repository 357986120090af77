"""Bars, one a method: where a step's time goes, and how much memory it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fngd_bench.report.numbers import Range
from fngd_bench.report.style import BESIDE, OTHER_SECTION, SECTIONS, Block, Choice, Figure, Look, plain, short
from fngd_bench.report.summary import Group, MethodSummary

EPOCHS = {"all epochs": "all_epochs", "first epoch": "first_epoch", "later epochs": "later_epochs"}
_FRAME, _BAR = 110, 30


def bar_blocks(group: Group, looks: Mapping[str, Look], key: str) -> tuple[Block, ...]:
    """The breakdown of a step and the memory.

    Args:
        group: The group.
        looks: How its methods are drawn.
        key: Prefix of the blocks' keys.

    Returns:
        Two blocks.
    """
    height = _FRAME + _BAR * len(group.methods)
    breakdown = Block(
        key=f"{key}-breakdown",
        title="where a step's time goes",
        caption="Milliseconds of a mean step by section, over all runs of a method. FNGD weights the gradient inside "
        "the backward pass, so its preconditioning is part of “backward”; by default its first epoch derives "
        f"the coefficients and the later ones share them. {group.counts}",
        choices=(Choice(label="over", options=tuple(EPOCHS)),),
        variants=tuple((breakdown_figure(group, field),) for field in EPOCHS.values()),
        height=height,
    )
    memory = Block(
        key=f"{key}-memory",
        title="peak memory",
        caption="Most memory that a run's process held above what it held before the model was built: median over "
        f"runs, whiskers from the lowest to the highest. {group.counts}",
        variants=((memory_figure(group, looks),),),
        height=height,
    )
    return breakdown, memory


def breakdown_figure(group: Group, field: str) -> Figure:
    """Stacked bars of a mean step.

    Args:
        group: The group.
        field: Field of `Breakdown`.

    Returns:
        The figure.
    """
    rows = [getattr(summary.breakdown, field) for summary in group.methods]
    names = list(dict.fromkeys([*(name for name in SECTIONS if any(name in row for row in rows)), *_others(rows)]))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": plain(name),
            "x": [row.get(name, 0.0) for row in rows],
            "y": list(range(len(rows))),
            "marker": {"color": SECTIONS.get(name, OTHER_SECTION)},
            "hovertemplate": "%{x:.2f} ms",
        }
        for name in names
    ]
    axis = {"title": {"text": "ms a step"}, "rangemode": "tozero"}
    layout = {"barmode": "stack", "xaxis": axis, "yaxis": _methods(group.methods), "hovermode": "y unified"}
    return {"data": traces, "layout": layout | {"legend": {"traceorder": "normal"}, **BESIDE}}


def memory_figure(group: Group, looks: Mapping[str, Look]) -> Figure:
    """A bar of peak memory for each method.

    Args:
        group: The group.
        looks: How its methods are drawn.

    Returns:
        The figure.
    """
    peaks = [summary.peak_mib or Range(0.0, 0.0, 0.0, 0) for summary in group.methods]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [peak.median for peak in peaks],
        "y": list(range(len(peaks))),
        "text": [f"\u2002{peak.median:,.0f} MiB" if peak.n else "\u2002not recorded" for peak in peaks],
        "textposition": "outside",
        "cliponaxis": False,
        "customdata": [peak.n for peak in peaks],
        "hovertemplate": "%{x:.1f} MiB (n = %{customdata})<extra></extra>",
        "marker": {"color": [looks[summary.method].colour for summary in group.methods]},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [peak.high - peak.median for peak in peaks],
            "arrayminus": [peak.median - peak.low for peak in peaks],
            "thickness": 1.2,
            "width": 4,
        },
        "showlegend": False,
    }
    # Room for the numbers to the right of the bars.
    most = 1.3 * max(peak.high for peak in peaks) or 1.0
    axis = {"title": {"text": "MiB"}, "range": [0, most]}
    return {"data": [trace], "layout": {"xaxis": axis, "yaxis": _methods(group.methods), **BESIDE}}


def _methods(methods: Sequence[MethodSummary]) -> Figure:
    """An axis of method names, the first on top."""
    return {
        "tickvals": list(range(len(methods))),
        "ticktext": [short(summary.method) for summary in methods],
        "range": [len(methods) - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 5,
        "tickcolor": "rgba(0,0,0,0)",
    }


def _others(rows: Sequence[Mapping[str, float]]) -> list[str]:
    return sorted({name for row in rows for name in row} - SECTIONS.keys())
