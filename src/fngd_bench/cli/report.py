"""`fngd report`: records → one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER…", help="Folders of runs, searched to the bottom, or records themselves."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page: one HTML file that opens offline.")] = Path(
        "report.html"
    ),
) -> None:
    """Turn records of runs, and of prices beside them, into tables and one page to look at.

    Example: `fngd report runs/ --out report.html`
    """
    from fngd_bench import console, files
    from fngd_bench.report.page import write_page
    from fngd_bench.report.sources import gather
    from fngd_bench.report.summary import groups
    from fngd_bench.report.terminal import group_table

    files.check_writable(out)
    found = gather(folders)
    for group in groups(found.runs, found.prices):
        console.show(group_table(group))
    write_page(found.runs, found.prices, out)
    typer.echo(f"{out}: the page of {len(found.runs)} runs and {len(found.prices)} prices, open it in a browser")
