"""What the terminal shows of a group of runs: one table, a row a method."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from fngd_bench.report import cells
from fngd_bench.report.numbers import unit
from fngd_bench.report.summary import REFERENCE, Group


def group_table(group: Group) -> Table:
    """The outcome of a group of runs.

    Args:
        group: The group.

    Returns:
        The table.
    """
    goal = "no target" if group.target is None else f"target {unit(group.metric).text(group.target)} {group.metric}"
    table = Table(title=Text(f"{group.title}, {goal}"), caption=Text(_caption(group)))
    table.add_column("method")
    ratio = f"time per step\nover {REFERENCE}'s"
    for title in (f"final {group.metric}", "seconds\nto target", "epochs\nto target", ratio, "peak\nmemory"):
        table.add_column(Text(title), justify="right", no_wrap=True)
    for summary in group.methods:
        texts = (
            summary.method,
            cells.final(group, summary),
            cells.target(summary.seconds_to_target, " s"),
            cells.target(summary.epochs_to_target),
            cells.step_ratio(summary),
            cells.memory(summary),
        )
        table.add_row(*map(Text, texts))  # Text, not str: a name in square brackets is not markup
    return table


def _caption(group: Group) -> str:
    own = [f"{summary.method}: {phrase}" for summary in group.methods for phrase in summary.flags]
    differing = [*own, *group.flags]
    warning = [f"Not all runs are alike: {'; '.join(differing)}."] if differing else []
    return "\n".join([*cells.NOTES, *warning])
