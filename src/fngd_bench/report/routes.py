"""The terminal's table of `fngd bench routes`: every route on every shape, and which one the planner takes."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from fngd_bench.price.choices import Choice, choices
from fngd_bench.price.routes_record import RoutesRecord
from fngd_bench.report.numbers import DASH


def terminal_table(record: RoutesRecord) -> Table:
    """A row for each shape.

    Args:
        record: The record.

    Returns:
        The table.
    """
    wanted, origin, found = record.settings, record.provenance, choices(record)
    routes = list(dict.fromkeys(route for choice in found for route in choice.milliseconds))
    table = Table(
        title=Text(
            f"{wanted.model}, batch {wanted.batch}: ms of a Gram matrix and the weighted gradient after it, "
            f"{wanted.rounds} rounds"
        ),
        caption=Text(
            f"medians, cold caches, at most {wanted.budget_bytes / 2**20:.0f} MiB of scratch memory; “estimate” is the "
            f"cost model's for the chosen route; {origin.cpu}, {origin.threads} threads, torch {origin.torch}"
        ),
    )
    table.add_column("M × T × d_in → d_out", no_wrap=True)
    table.add_column("weights", justify="right")
    table.add_column("chosen", no_wrap=True)
    for title in (*routes, "chosen / best", "estimate"):
        table.add_column(title, justify="right", no_wrap=True)
    for choice in found:
        times = [_time(choice, route) for route in routes]
        ratio = Text(f"{choice.ratio:.2f}", style="" if choice.good else "bold red")
        estimate = f"{choice.expected_ms:.2f}"
        table.add_row(Text(choice.shape), str(choice.count), choice.chosen, *times, ratio, estimate)
    return table


def _time(choice: Choice, route: str) -> Text:
    """Milliseconds; the least are bold."""
    if route not in choice.milliseconds:
        return Text(DASH)
    return Text(f"{choice.milliseconds[route]:.2f}", style="bold" if route == choice.best else "")
