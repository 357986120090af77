"""Heat maps: coefficient statistics by layer and epoch, and the Gram matrices of some layers."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fngd_bench.report.style import HEIGHT, Block, Choice, Figure, plain, short
from fngd_bench.report.summary import Group, MethodSummary
from fngd_bench.runs.events import Gram

DIVERGING = "diverging"
"""Stands for the colour scale of signed values; the page puts in that of its theme."""
_FRAME, _ROW = 90, 19
_PANEL = 320


@dataclass(frozen=True)
class Statistic:
    """A field of `LayerCoefficients` and what it means."""

    field: str
    title: str
    logarithmic: bool = False


STATISTICS = (
    Statistic("coefficient_mean", "mean of c"),
    Statistic("coefficient_spread", "spread of c inside a batch"),
    Statistic("shared_spread", "spread of c̃ over positions"),
    Statistic("effective_rank", "effective rank of K"),
    Statistic("damping", "damping λ, logarithmic", logarithmic=True),
    Statistic("cosine", "cosine of weighted and plain gradient"),
)


def map_blocks(group: Group, key: str) -> tuple[Block, ...]:
    """Coefficients and Gram matrices, as far as they were recorded.

    Args:
        group: The group.
        key: Prefix of the blocks' keys.

    Returns:
        At most two blocks.
    """
    return tuple(block for block in (_coefficients(group, key), _grams(group, key)) if block is not None)


def coefficient_figure(summary: MethodSummary, statistic: Statistic) -> Figure:
    """A statistic by layer and epoch, mean over seeds.

    Args:
        summary: A method with recorded coefficients.
        statistic: The statistic.

    Returns:
        The figure.
    """
    values: dict[tuple[str, int], list[float]] = defaultdict(list)
    for event in (event for run in summary.runs for event in run.coefficients):
        for name, layer in event.layers.items():
            values[name, event.epoch].append(getattr(layer, statistic.field))
    layers = list(dict.fromkeys(name for name, _ in values))
    epochs = sorted({epoch for _, epoch in values})
    means = [[_mean(values.get((name, epoch), [])) for epoch in epochs] for name in layers]
    trace = {
        "type": "heatmap",
        "x": epochs,
        "y": list(range(len(layers))),
        "z": [[_log(value) for value in row] for row in means] if statistic.logarithmic else means,
        "text": [[f"layer {plain(_name(name))}<br>epoch {epoch}" for epoch in epochs] for name in layers],
        "customdata": means,
        "hovertemplate": f"%{{text}}<br>{plain(statistic.title)}: %{{customdata:.4g}}<extra></extra>",
        "colorscale": "Viridis",
        "xgap": 1,
        "ygap": 1,
        "colorbar": _scale(means) if statistic.logarithmic else {"tickformat": "~g"},
    }
    step = {"dtick": 1} if len(epochs) <= 12 else {}
    layout = {"xaxis": {"title": {"text": "epochs"}, "tickformat": "d", "showgrid": False, **step}, "margin": {"t": 34}}
    return {"data": [trace], "layout": layout | {"yaxis": _labels(layers)}}


def gram_figure(name: str, matrix: Sequence[Sequence[float]]) -> Figure:
    """The Gram matrix of a layer.

    Args:
        name: The layer.
        matrix: K divided by its norm.

    Returns:
        The figure.
    """
    beside = [abs(value) for r, row in enumerate(matrix) for c, value in enumerate(row) if r != c]
    most = max(beside, default=0.0) or 1.0
    trace = {
        "type": "heatmap",
        "z": [[float(f"{value:.3g}") for value in row] for row in matrix],
        "zmin": -most,
        "zmax": most,
        "colorscale": DIVERGING,
        "colorbar": {"tickformat": "~g", "nticks": 5, "orientation": "h", "y": -0.12, "yanchor": "top", "len": 1},
        "hovertemplate": "samples %{y} and %{x}: %{z:.3g}<extra></extra>",
    }
    axis = {"showgrid": False, "zeroline": False, "nticks": 5, "constrain": "domain"}
    layout = {
        "title": {"text": f"layer {short(_name(name), 30)}"},
        "margin": {"t": 30, "b": 56, "r": 8},
        "xaxis": axis,
        "yaxis": axis | {"autorange": "reversed", "scaleanchor": "x"},
    }
    return {"data": [trace], "layout": layout}


def _coefficients(group: Group, key: str) -> Block | None:
    summaries = [summary for summary in group.methods if any(run.coefficients for run in summary.runs)]
    if not summaries:
        return None
    layers = max(len(event.layers) for run in group.runs for event in run.coefficients)
    runs = ", ".join(f"{s.method} {sum(bool(run.coefficients) for run in s.runs)}" for s in summaries)
    return Block(
        key=f"{key}-coefficients",
        title="coefficients by layer and epoch",
        caption="What the derived batches say of each layer up to the end of an epoch; mean over runs. A method that "
        "shares derives at first only, for one epoch by default, and its columns stay as they are after that. Compare "
        "the spread of c̃ over positions with that of c inside a batch: the first is all that "
        f"sharing can tell apart. Runs: {runs}.",
        choices=(
            Choice(label="method", options=tuple(summary.method for summary in summaries)),
            Choice(label="statistic", options=tuple(statistic.title for statistic in STATISTICS)),
        ),
        variants=tuple((coefficient_figure(s, statistic),) for s in summaries for statistic in STATISTICS),
        height=max(_FRAME + _ROW * layers, HEIGHT),
        wide=True,
    )


def _grams(group: Group, key: str) -> Block | None:
    recorded = [
        (f"{summary.method}, epoch {gram.epoch}", run.settings.seed, gram)
        for summary in group.methods
        for run in [run for run in summary.runs if run.grams][:1]
        for gram in run.grams
    ]
    if not recorded:
        return None
    seeds = sorted({seed for _, seed, _ in recorded})
    size = max(len(matrix) for *_, gram in recorded for matrix in gram.layers.values())
    return Block(
        key=f"{key}-gram",
        title="Gram matrices K",
        caption=f"K of the first {size} samples of one training batch, divided by its norm: entry (m, n) is the inner "
        "product of the gradients of samples m and n. The colours end at the largest entry off the diagonal, so the "
        f"diagonal may lie beyond them. One run of each method (n = 1 < 3), seed {', '.join(map(str, seeds))}.",
        choices=(Choice(label="batch of", options=tuple(name for name, *_ in recorded)),),
        variants=tuple(_panels(gram) for *_, gram in recorded),
        height=_PANEL,
        wide=True,
    )


def _panels(gram: Gram) -> tuple[Figure, ...]:
    return tuple(gram_figure(name, matrix) for name, matrix in gram.layers.items())


def _labels(layers: Sequence[str]) -> Figure:
    """An axis of layer names, the first on top."""
    return {
        "title": {"text": "layer"},
        "tickvals": list(range(len(layers))),
        "ticktext": [short(_name(name), 22) for name in layers],
        "range": [len(layers) - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 5,
        "tickcolor": "rgba(0,0,0,0)",
    }


def _name(layer: str) -> str:
    """A layer's name; a model that is one layer has none."""
    return layer or "model"


def _scale(means: Sequence[Sequence[float]]) -> Figure:
    """A colour bar of logarithms that shows the numbers themselves."""
    logs = [_log(value) for row in means for value in row if value > 0]
    marks = range(math.floor(min(logs, default=0.0)), math.ceil(max(logs, default=0.0)) + 1)
    return {"tickvals": list(marks), "ticktext": [f"1e{mark}" for mark in marks]}


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _log(value: float) -> float:
    return math.log10(value) if value > 0 else math.nan
