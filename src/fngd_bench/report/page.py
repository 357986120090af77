"""The page: everything that the records say, in one HTML file that needs no network.

Text goes through the template's escaping, figures are JSON in which no `<` is left, and a content policy lets run only
the two scripts whose hashes it names. Same records, same page: nothing of the time or place of its making is in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fngd_bench.files import write_text
from fngd_bench.price.record import StepRecord
from fngd_bench.report import tables
from fngd_bench.report.bars import bar_blocks
from fngd_bench.report.curves import READ, Looks, curve_blocks
from fngd_bench.report.findings import Finding, findings
from fngd_bench.report.maps import map_blocks
from fngd_bench.report.numbers import unit
from fngd_bench.report.style import Block, clean, looks
from fngd_bench.report.summary import Group, groups, state
from fngd_bench.report.tables import Table
from fngd_bench.runs.reader import Run

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, kw_only=True)
class Section:
    """What the page shows of one group."""

    key: str
    group: Group
    facts: tuple[str, ...]
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    results: Table
    targets: Table | None
    curves: tuple[Block, ...]
    costs: tuple[Block, ...]
    maps: tuple[Block, ...]
    runs: Table

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Everything that is drawn."""
        return self.curves + self.costs + self.maps


def write_page(runs: Iterable[Run], prices: Sequence[StepRecord], path: Path) -> None:
    """Write the page, in one go.

    Args:
        runs: The runs.
        prices: Price records.
        path: The file.
    """
    write_text(path, page(tuple(runs), prices))


def page(runs: Sequence[Run], prices: Sequence[StepRecord]) -> str:
    """The page of some runs and prices.

    Args:
        runs: The runs.
        prices: Price records.

    Returns:
        HTML.
    """
    found = groups(runs, prices)
    drawn = looks(run.settings.method for run in runs)
    sections = [_section(f"g{k}", group, drawn) for k, group in enumerate(found, 1)]
    return render(
        "page.html",
        [block for section in sections for block in section.blocks],
        overview=_overview(runs),
        sections=sections,
        how_to_read=READ,
        prices=[tables.step_prices(record) for record in prices],
        places=tables.places(runs, prices),
    )


def render(template: str, blocks: Sequence[Block], **content: Any) -> str:
    """A page from a template, with the style, the scripts and the figures inside of it.

    Args:
        template: Name of a file in the folder of templates.
        blocks: Everything that is drawn.
        **content: What else the template names.

    Returns:
        HTML.
    """
    scripts = [_script(get_plotlyjs()), _script(_read("page.js"))]
    # StrictUndefined: a name that is missing in the template is an error, not a hole in the page.
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters |= {"pieces": pieces, "held": held}
    return environment.get_template(template).render(
        policy=_policy(scripts),
        style=Markup(_read("page.css")),  # noqa: S704 — our own file
        scripts=scripts,
        figures=embedded(blocks),
        **content,
    )


def embedded(blocks: Sequence[Block]) -> Markup:
    """Figures as JSON that may stand inside a script element whatever their texts are.

    Args:
        blocks: The blocks.

    Returns:
        JSON in ASCII without `<`, `>` and `&`.
    """
    content = [{"key": b.key, "height": b.height, "variants": b.variants, "choices": _sizes(b)} for b in blocks]
    text = json.dumps(clean(content), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 — nothing is left in it that ends a script element


def pieces(cell: str) -> list[str]:
    """The parts of a cell between which a line may break: at commas, but not inside an interval.

    Args:
        cell: The text.

    Returns:
        Its parts, without the commas.
    """
    return re.split(r", (?![^\[]*\])", cell)


def held(text: str) -> str:
    """Text whose counts of runs are not broken over two lines.

    Args:
        text: The text.

    Returns:
        The same with "n = 2 < 3" held together by spaces that do not break.
    """
    return re.sub(r"n = \d+( < \d+)?", lambda found: found.group().replace(" ", "\u00a0"), text)


def _sizes(block: Block) -> list[int]:
    """How many options each choice has."""
    return [len(choice.options) for choice in block.choices]


def _section(key: str, group: Group, drawn: Looks) -> Section:
    return Section(
        key=key,
        group=group,
        facts=_facts(group),
        findings=findings(group),
        warnings=_warnings(group),
        results=tables.results(group),
        targets=tables.time_to_target(group),
        curves=curve_blocks(group, drawn, key),
        costs=bar_blocks(group, drawn, key),
        maps=map_blocks(group, key),
        runs=tables.all_runs(group),
    )


def _facts(group: Group) -> tuple[str, ...]:
    wanted, run = group.runs[-1].settings, group.runs[-1]
    goal = "no target" if group.target is None else f"target {unit(group.metric).text(group.target)} {group.metric}"
    return (
        goal,
        f"{wanted.epochs} epochs of {wanted.steps_per_epoch:,} steps",
        f"batch {wanted.batch}",
        f"{run.header.parameters:,} parameters",
        f"schedule {wanted.schedule}",
    )


def _warnings(group: Group) -> tuple[str, ...]:
    """What makes cells less comparable than they look."""
    own = [f"{summary.method}: {phrase}" for summary in group.methods for phrase in summary.flags]
    ended = [
        f"{summary.method}: {count} of {len(summary.runs)} runs {name}"
        for summary in group.methods
        for name, count in sorted(summary.states.items())
        if name != "finished"
    ]
    return (*ended, *own, *(f"between runs: {phrase}" for phrase in group.flags))


def _overview(runs: Sequence[Run]) -> str:
    if not runs:
        return "Prices of a step; no training runs."
    states = ", ".join(f"{count} {name}" for name, count in Counter(map(state, runs)).most_common())
    dates = sorted(run.provenance.date[:10] for run in runs)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return f"{len(runs)} runs ({states}), started {when}."


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _script(source: str) -> Markup:
    """A script as the browser sees it, which knows one kind of line end."""
    assert "</script" not in source.lower()
    return Markup(source.replace("\r\n", "\n").replace("\r", "\n"))  # noqa: S704 — plotly's file, or ours


def _policy(scripts: Sequence[str]) -> str:
    """Nothing from the network, and no script but these."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
