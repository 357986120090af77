"""`fngd bench table`: records → the Markdown table of prices, and its place in the README. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fngd_bench.errors import InputError
from fngd_bench.price.prices import Price, import_price, prices
from fngd_bench.price.ratios import Ratio
from fngd_bench.price.record import ImportRecord, Record, StepRecord
from fngd_bench.provenance import Provenance

BEGIN = "<!-- price table: made by `fngd bench table` -->"
END = "<!-- end of price table -->"
IMPORT_GOAL = 1.05


@dataclass(frozen=True)
class Column:
    """A column of ratios: whose, of what, and the goal, if there is one."""

    title: str
    method: str
    quantity: str
    """Field of `Price`: "time" or "memory"."""
    goal: float | None = None

    def header(self) -> str:
        """The title with the goal."""
        return self.title if self.goal is None else f"{self.title}, goal ≤ {self.goal:g}"

    def ratio(self, row: dict[str, Price]) -> Ratio | None:
        """The ratio of one record, None where it was not measured.

        Args:
            row: Prices by method.

        Returns:
            The ratio.
        """
        return getattr(row[self.method], self.quantity) if self.method in row else None

    def cell(self, row: dict[str, Price]) -> str:
        """The same as text.

        Args:
            row: Prices by method.

        Returns:
            The ratio with its verdict, or a dash.
        """
        ratio = self.ratio(row)
        return "–" if ratio is None else _judged(ratio, self.goal)


COLUMNS = (
    Column("sharing step", "fngd-share", "time", 1.02),
    Column("constant", "fngd-constant", "time", 1.005),
    Column("deriving step", "fngd-derive", "time", 1.5),
    Column("deriving 1 in 10", "fngd-refreshed", "time", 1.06),
    Column("from the head", "fngd-head", "time", 1.005),
    Column("peak memory, sharing", "fngd-share", "memory", 1.03),
    Column("peak memory, deriving", "fngd-derive", "memory", 1.25),
)


def table(records: Sequence[Record]) -> str:
    """The prices of all records: a Markdown table for each processor and what one must know to read it.

    Methods that none of the records holds have no column.

    Args:
        records: Step records, a row each, in order; import records, a sentence each.

    Returns:
        Markdown, without a line break at its end.

    Raises:
        InputError: If there is no step record among them.
    """
    steps = [record for record in records if isinstance(record, StepRecord)]
    imports = [record for record in records if isinstance(record, ImportRecord)]
    if not steps:
        raise InputError("none of the files is a record of `fngd bench step`: name at least one")
    processors = list(dict.fromkeys(record.provenance.cpu for record in steps))
    tables = [_rows([record for record in steps if record.provenance.cpu == cpu]) for cpu in processors]
    if len(processors) > 1:
        tables = [[f"On {cpu}:", "", *lines] for cpu, lines in zip(processors, tables, strict=True)]
    disturbed = [each for record in steps if (each := record.surroundings.disturbance(record.settings.subject))]
    words = [_caption(steps), *disturbed, *(_import_sentence(record) for record in imports), *_sources(records)]
    return "\n".join([*(line for lines in tables for line in (*lines, "")), *words])


def _rows(steps: Sequence[StepRecord]) -> list[str]:
    """A Markdown table with a row for each record."""
    rows = [{price.method: price for price in prices(record)} for record in steps]
    columns = [column for column in COLUMNS if any(column.ratio(row) for row in rows)]
    header = ["model", "batch", "steps", *(column.header() for column in columns)]
    rule = ["---", *(["---:"] * (len(header) - 1))]
    cells = [
        [*_subject(record), *(column.cell(row) for column in columns)] for record, row in zip(steps, rows, strict=True)
    ]
    return [_line(line) for line in (header, rule, *cells)]


def insert(document: str, text: str) -> str:
    """Put the table between its marker lines.

    Args:
        document: A Markdown document that holds both markers once.
        text: The table.

    Returns:
        The document with whatever was between the markers replaced.

    Raises:
        InputError: If a marker is missing, doubled, or they are in the wrong order.
    """
    if document.count(BEGIN) != 1 or document.count(END) != 1 or document.index(END) < document.index(BEGIN):
        raise InputError(f"the document must hold the line {BEGIN!r} once and the line {END!r} once below it: add them")
    before, _, rest = document.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def _subject(record: StepRecord) -> list[str]:
    wanted = record.settings
    each = wanted.steps // wanted.processes
    return [wanted.subject, str(wanted.batch), f"{wanted.processes} × {each}" if wanted.processes > 1 else str(each)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _judged(ratio: Ratio, goal: float | None) -> str:
    """The ratio; a median above the goal misses it, an interval that reaches above it leaves it open."""
    if goal is None or ratio.high <= goal:
        return ratio.text()
    return f"{ratio.text()} {'missed' if ratio.median > goal else 'open'}"


def _caption(steps: Sequence[StepRecord]) -> str:
    runs = sorted({record.settings.memory_runs for record in steps if record.settings.memory_runs})
    memory = (
        " Peak memory: what the process held at most, less what it held before the model was built; median [range] of "
        f"{' or '.join(map(str, runs))} processes each."
    )
    apart = (
        " Where several processes took some steps each, it is the median of the processes' medians, and the interval "
        "that of their median, the range of up to eight of them."
    )
    several = any(record.settings.processes > 1 for record in steps)
    return (
        "Ratios to fused SGD with momentum, which ran interleaved in the same process: median of the paired ratios "
        f"[95 % interval of the median].{apart if several else ''} A goal is missed if the median lies above it, and "
        f"open if only the interval reaches above it.{memory if runs else ''}"
    )


def _import_sentence(record: ImportRecord) -> str:
    ratio = import_price(record)
    price = _judged(ratio, IMPORT_GOAL)
    return f"`import fngd` takes {price} × the time of `import torch`, goal ≤ {IMPORT_GOAL:g}, {ratio.n} pairs."


def _sources(records: Sequence[Record]) -> list[str]:
    """A sentence for each different place that records come from."""
    return list(dict.fromkeys(_source(record.provenance) for record in records))


def _source(origin: Provenance) -> str:
    commit = "no commit" if origin.commit is None else f"commit {origin.commit[:12]}"
    state = " with changes" if origin.dirty else ""
    return (
        f"Measured {origin.date[:10]} on {origin.cpu}, {origin.cores} cores, {origin.threads} threads; torch "
        f"{origin.torch}, Python {origin.python}, fngd {origin.fngd}, {commit}{state}."
    )
