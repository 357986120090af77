"""The page and the terminal's table of `fngd bench scaling`: exponents beside the paper's, plots, a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table as Terminal
from rich.text import Text

from fngd_bench.files import write_text
from fngd_bench.price.growth import EXTRA, EXTRA_STATE, PEAK, STATE, STEP, Growth, growths
from fngd_bench.price.scaling_record import ScalingRecord
from fngd_bench.price.verdict import Verdict, answer, verdicts
from fngd_bench.report import tables
from fngd_bench.report.page import render
from fngd_bench.report.scaling_figures import AXIS_TITLES, block, method_looks
from fngd_bench.report.style import Block
from fngd_bench.report.tables import Table

ABOUT = {
    "linear": ("One fully connected layer", "D units in, D units out; the width is D."),
    "convolution": ("One convolution", "3×3, as many channels out as in, on 8×8 pixels; the width is the channels."),
    "mlp": ("A multilayer perceptron", "Fully connected layers D → D with ReLU between them; the width is D."),
    "resnet": (
        "ResNet-32 and its relatives",
        "32×32 pixels; the width is the channels of the first stage, 16 in ResNet-32. The first blocks of "
        "its stages are smaller than the others, so that its bytes grow a little faster than its layers.",
    ),
}
"""Title of each subject and what is measured."""
COLUMNS = {
    STEP: "step’s time",
    EXTRA: "time beyond sgd’s",
    STATE: "optimizer’s bytes",
    EXTRA_STATE: "bytes beyond sgd’s",
    PEAK: "peak memory",
}
READ = (
    "Exponents p of a + b·sizeᵖ with their standard errors. “12 % fixed” is a’s share at the largest size, where a "
    "constant beside the power was needed; “in the noise” is what the rounds do not determine.",
    "The paper’s table 1 is for M samples and a fully connected layer of dimension D: beyond SGD, time MD and memory M "
    "for FNGD, 2MD² + 2D³ + 2D³ and 2D² for KFAC, 2MD + 2D² and 2D for Eva, 2D³ + 2D³ + 2D³ and 2D² for Shampoo. A "
    "range is from the least exponent of these terms to the largest: which of them wins depends on M, D and intervals.",
    "Time beyond SGD’s is the difference of two steps in one round. Steps of KFAC and Shampoo that measure or invert "
    "are timed apart and count as often as they come: every 10 and every 100 steps.",
    "Bytes are those of all tensors in the optimizer’s state between two steps: momentum is in them, parameters and "
    "gradients are not.",
)
"""How to read the exponents."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a subject on the page."""

    key: str
    table: Table
    block: Block


@dataclass(frozen=True, kw_only=True)
class Section:
    """One subject on the page."""

    key: str
    title: str
    about: str
    axes: tuple[Axis, ...]


def write_page(record: ScalingRecord, path: Path) -> None:
    """Write the page, in one go.

    Args:
        record: The record.
        path: The file.
    """
    write_text(path, page(record))


def page(record: ScalingRecord) -> str:
    """The page of a record.

    Args:
        record: The record.

    Returns:
        HTML.
    """
    found, judged = growths(record), verdicts(record)
    subjects = dict.fromkeys(growth.subject for growth in found)
    sections = [_section(record, name, [growth for growth in found if growth.subject == name]) for name in subjects]
    return render(
        "scaling.html",
        [axis.block for section in sections for axis in section.axes],
        overview=_overview(record),
        answer=answer(judged),
        how_to_read=READ,
        disturbance=record.surroundings.disturbance("Growth"),
        verdicts=_verdict_table(judged) if judged else None,
        sections=sections,
        places=tables.places((), (record,)),
    )


def terminal_table(record: ScalingRecord) -> Terminal:
    """The exponents, a row for each method and axis.

    Args:
        record: The record.

    Returns:
        The table.
    """
    found = growths(record)
    shown = [name for name in COLUMNS if any(growth.quantity == name for growth in found)]
    origin = record.provenance
    table = Terminal(
        title=Text(
            f"Exponents of growth, {len(record.measured)} measurements, at least {record.settings.rounds} rounds"
        ),
        caption=Text(
            "p of a + b·sizeᵖ ± standard error; “fixed” is a's share at the largest size; in brackets the paper's "
            f"table; {origin.cpu}, {origin.threads} threads, torch {origin.torch}"
        ),
    )
    for title in ("subject", "axis", "method"):
        table.add_column(title, no_wrap=True)
    for name in shown:
        table.add_column(COLUMNS[name], justify="right", no_wrap=True)
    for subject, axis in record.rows:
        for method in record.settings.methods:
            cells = _cells([g for g in found if (g.subject, g.axis, g.method) == (subject, axis, method)], shown)
            last = method == record.settings.methods[-1]
            table.add_row(*map(Text, (subject, axis, method, *cells)), end_section=last)
    return table


def _cells(found: Sequence[Growth], shown: Sequence[str]) -> list[str]:
    by_quantity = {growth.quantity: growth for growth in found}
    return [_cell(by_quantity.get(name)) for name in shown]


def _cell(growth: Growth | None) -> str:
    """An exponent with the paper's in brackets."""
    if growth is None:
        return "–"
    return growth.text if growth.predicted is None else f"{growth.text} [{growth.predicted}]"


def _section(record: ScalingRecord, subject: str, found: Sequence[Growth]) -> Section:
    title, about = ABOUT[subject]
    drawn = method_looks(record.settings.methods)
    axes = dict.fromkeys(growth.axis for growth in found)
    return Section(
        key=subject,
        title=title,
        about=about,
        axes=tuple(
            Axis(
                key=f"{subject}-{axis}",
                table=_axis_table(record, subject, axis, [growth for growth in found if growth.axis == axis]),
                block=block(f"{subject}-{axis}", [growth for growth in found if growth.axis == axis], drawn),
            )
            for axis in axes
        ),
    )


def _axis_table(record: ScalingRecord, subject: str, axis: str, found: Sequence[Growth]) -> Table:
    shown = [name for name in COLUMNS if any(growth.quantity == name for growth in found)]
    compared = [name for name in (EXTRA, EXTRA_STATE) if name in shown]
    return Table(
        title=f"Over {axis}: {_fixed(record, subject, axis)}",
        head=("method", *(COLUMNS[name] for name in shown), *(f"paper: {COLUMNS[name]}" for name in compared)),
        rows=tuple(_axis_row(found, method, shown, compared) for method in record.settings.methods),
    )


def _axis_row(found: Sequence[Growth], method: str, shown: Sequence[str], compared: Sequence[str]) -> tuple[str, ...]:
    own = {growth.quantity: growth for growth in found if growth.method == method}
    measured = (own[name].text if name in own else "–" for name in shown)
    said = ((own[name].predicted if name in own else None) or "–" for name in compared)
    return (method, *measured, *said)


def _fixed(record: ScalingRecord, subject: str, axis: str) -> str:
    """The sizes that grow and those that do not."""
    points = [row.point for row in record.of(subject, axis, record.settings.methods[0])]
    grown = f"{points[0].size} to {points[-1].size} {AXIS_TITLES[axis] if axis != 'width' else 'wide'}"
    sizes = {
        "batch": f"batch {points[0].batch}",
        "width": f"width {points[0].width}",
        "depth": _layers(points[0].depth),
    }
    return ", ".join([grown, *(text for name, text in sizes.items() if name != axis)])


def _layers(depth: int) -> str:
    return "one layer" if depth == 1 else f"{depth} layers"


def _verdict_table(judged: Sequence[Verdict]) -> Table:
    return Table(
        title="Sharing step against SGD’s",
        head=("subject", "axis", "sizes", "exponent of the ratio", "95 % interval", "the sharing step grows"),
        rows=tuple(
            (
                verdict.subject,
                verdict.axis,
                f"{verdict.sizes[0]} to {verdict.sizes[-1]}",
                f"{verdict.difference:+.3f}",
                f"[{verdict.low:+.3f}, {verdict.high:+.3f}]",
                verdict.told,
            )
            for verdict in judged
        ),
        notes=(
            "The time of a sharing step over SGD’s in the same round, as a power of the size, over the larger half of "
            "the sizes. Negative: the sharing step’s extra weighs less and less.",
        ),
    )


def _overview(record: ScalingRecord) -> str:
    wanted, origin = record.settings, record.provenance
    return (
        f"{', '.join(wanted.methods)}; interleaved in one process, at least {wanted.rounds} rounds at each size; "
        f"{origin.cpu}, {origin.threads} threads, {origin.date[:10]}."
    )
