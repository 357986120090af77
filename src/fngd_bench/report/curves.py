"""Curves over a training: metric and losses against epochs and against seconds, a line and a band for each method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fngd_bench.report.numbers import Unit, unit
from fngd_bench.report.style import BESIDE, Block, Choice, Figure, Look, plain
from fngd_bench.report.summary import Group, MethodSummary, state
from fngd_bench.runs.events import Epoch

Looks = Mapping[str, Look]
_LOSSES = {"test loss": "test_loss", "training loss": "train_loss"}
_AXES: dict[str, Callable[[Epoch], float]] = {
    "epochs": lambda epoch: float(epoch.epoch),
    "seconds": lambda epoch: epoch.seconds,
}
_TITLES = {"epochs": "epochs", "seconds": "timed seconds"}
READ = (
    "Lines are means over seeds, bands go from the lowest to the highest seed. A cross is where a run's record ends "
    "early: it diverged, was stopped or is under way; from there on the mean is over the others. Seconds are timed "
    "ones: data, forward, backward and update, without evaluation, logging and checkpoints; a point is the end of an "
    "epoch at its mean time over seeds."
)
"""How to read the curves."""


@dataclass(frozen=True)
class Point:
    """One epoch of a method: where it is drawn, and what its runs say."""

    x: float
    mean: float
    low: float
    high: float
    n: int


def points(summary: MethodSummary, field: str, against: str, factor: float = 1.0) -> list[Point]:
    """The mean curve of a method.

    Args:
        summary: The method.
        field: Field of `Epoch`.
        against: "epochs" or "seconds".
        factor: What values are multiplied by.

    Returns:
        A point for each epoch that a run was evaluated after; values that are not finite are left out.
    """
    by_epoch: dict[int, list[tuple[float, float]]] = {}
    for epoch in (epoch for run in summary.runs for epoch in run.epochs):
        value = factor * getattr(epoch, field)
        if math.isfinite(value):
            by_epoch.setdefault(epoch.epoch, []).append((_AXES[against](epoch), value))
    return [_point(by_epoch[number]) for number in sorted(by_epoch)]


def curve_blocks(group: Group, looks: Looks, key: str) -> tuple[Block, ...]:
    """The metric and the losses, each against epochs and against seconds.

    Args:
        group: The group.
        looks: How its methods are drawn.
        key: Prefix of the blocks' keys.

    Returns:
        Four blocks.
    """
    metric = tuple(
        Block(
            key=f"{key}-metric-{against}",
            title=f"{group.metric} against {against}",
            caption=f"Mean {group.metric} on the test set after each epoch. {group.counts}",
            variants=((metric_figure(group, looks, against),),),
        )
        for against in _AXES
    )
    losses = tuple(
        Block(
            key=f"{key}-loss-{against}",
            title=f"loss against {against}",
            caption=f"Mean loss on the test set after each epoch, or over the epoch's training batches. {group.counts}",
            choices=(Choice(label="loss", options=tuple(_LOSSES)),),
            variants=tuple((loss_figure(group, looks, name, against),) for name in _LOSSES),
        )
        for against in _AXES
    )
    return metric + losses


def metric_figure(group: Group, looks: Looks, against: str) -> Figure:
    """The metric of all methods, and the target.

    Args:
        group: The group.
        looks: How its methods are drawn.
        against: "epochs" or "seconds".

    Returns:
        The figure.
    """
    shown = unit(group.metric)
    figure = _figure(group, looks, "metric", against, shown)
    figure["layout"]["yaxis"] |= {"ticksuffix": shown.suffix, "title": {"text": plain(group.metric)}}
    if group.target is not None:
        _add_target(figure, shown.factor * group.target, f"target {shown.text(group.target)}")
    return figure


def loss_figure(group: Group, looks: Looks, name: str, against: str) -> Figure:
    """A loss of all methods; its axis is logarithmic if every value allows it.

    Args:
        group: The group.
        looks: How its methods are drawn.
        name: "test loss" or "training loss".
        against: "epochs" or "seconds".

    Returns:
        The figure.
    """
    figure = _figure(group, looks, _LOSSES[name], against, Unit(1.0, "", ""))
    values = [value for trace in figure["data"] for value in trace["y"]]
    figure["layout"]["yaxis"] |= {"title": {"text": name}}
    if values and min(values) > 0:
        figure["layout"]["yaxis"] |= {"type": "log", "dtick": "D2", "tickformat": "~g"}
    return figure


def _figure(group: Group, looks: Looks, field: str, against: str, shown: Unit) -> Figure:
    traces = [trace for summary in group.methods for trace in _traces(summary, looks, field, against, shown)]
    axis: Figure = {"title": {"text": _TITLES[against]}, "rangemode": "tozero" if against == "seconds" else "normal"}
    if against == "epochs":
        most = max((epoch.epoch for run in group.runs for epoch in run.epochs), default=1)
        axis |= {"tickformat": "d", "dtick": 1} if most <= 12 else {"tickformat": "d"}
    mode = "x unified" if against == "epochs" else "closest"
    return {"data": traces, "layout": {"xaxis": axis, "yaxis": {}, "hovermode": mode, **BESIDE}}


def _traces(summary: MethodSummary, looks: Looks, field: str, against: str, shown: Unit) -> list[Figure]:
    look, drawn = looks[summary.method], points(summary, field, against, shown.factor)
    crosses = _crosses(summary, look, field, against, shown.factor)
    parts = {"band": _band(drawn, look), "line": _line(drawn, look, shown.suffix)}
    parts |= {"crosses": crosses} if crosses["x"] else {}
    common = {"type": "scatter", "legendgroup": summary.method, "name": plain(summary.method)}
    # The page keeps by `uid` which curves are hidden when it draws another loss.
    return [part | common | {"uid": f"{summary.method}-{name}"} for name, part in parts.items()]


def _line(drawn: list[Point], look: Look, suffix: str) -> Figure:
    value = "%{y:.4g}" + suffix
    extent = "%{customdata[0]:.4g} to %{customdata[1]:.4g}, n = %{customdata[2]}"
    return {
        "mode": "lines+markers",
        "x": [point.x for point in drawn],
        "y": [point.mean for point in drawn],
        "customdata": [[point.low, point.high, point.n] for point in drawn],
        "hovertemplate": f"{value} ({extent})",
        "line": {"color": look.colour, "dash": look.dash, "width": 2},
        "marker": {"color": look.colour, "symbol": look.marker, "size": 6},
    }


def _band(drawn: list[Point], look: Look) -> Figure:
    """A closed outline: along the highest values and back along the lowest."""
    back = drawn[::-1]
    return {
        "mode": "lines",
        "x": [point.x for point in drawn + back],
        "y": [point.high for point in drawn] + [point.low for point in back],
        "fill": "toself",
        "fillcolor": look.faint,
        "line": {"width": 0, "color": look.colour},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _crosses(summary: MethodSummary, look: Look, field: str, against: str, factor: float) -> Figure:
    """Where runs ended before their time."""
    ended = [run for run in summary.runs if run.epochs and state(run) != "finished"]
    values = [(run, factor * getattr(run.epochs[-1], field)) for run in ended]
    drawn = [(run, value) for run, value in values if math.isfinite(value)]
    return {
        "mode": "markers",
        "x": [_AXES[against](run.epochs[-1]) for run, _ in drawn],
        "y": [value for _, value in drawn],
        "text": [f"seed {run.settings.seed} {plain(state(run))} here" for run, _ in drawn],
        "hovertemplate": "%{text}",
        "marker": {"color": look.colour, "symbol": "x", "size": 11, "line": {"width": 1}},
        "showlegend": False,
    }


def _point(values: list[tuple[float, float]]) -> Point:
    xs, ys = zip(*values, strict=True)
    return Point(statistics.fmean(xs), statistics.fmean(ys), min(ys), max(ys), len(ys))


def _add_target(figure: Figure, y: float, text: str) -> None:
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": {"dash": "dot", "width": 1.5}}
    label = {"xref": "paper", "x": 0, "xanchor": "left", "y": y, "yanchor": "bottom", "text": text, "showarrow": False}
    figure["layout"] |= {"shapes": [line], "annotations": [label]}
