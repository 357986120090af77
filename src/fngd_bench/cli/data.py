"""`fngd data`: what data sets there are, and getting and checking them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAMES = (
    "digits, numbers, cifar10, cifar100, tiny20, imagenet, multi30k, digits-noisy, digits-longtail, cifar10-noisy, "
    "cifar10-longtail"
)
Folder = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="Where data sets lie; by default $FNGD_DATA or your cache folder."),
]

app = typer.Typer(help="List, get and check data sets.", no_args_is_help=True, rich_markup_mode="markdown")


@app.command("list")
def data_list(data: Folder = None) -> None:
    """Show every data set, and whether its files are there.

    Example: `fngd data list`
    """
    from rich.table import Table

    from fngd_bench import console
    from fngd_bench.data import SETS, data_folder

    folder = data_folder(data)
    table = Table(caption=f"in {folder}; `fngd data verify` reads the files that are there")
    for title in ("name", "what", "samples", "size", "where", "files"):
        table.add_column(title, no_wrap=True)
    for entry in SETS.values():
        table.add_row(*entry.facts, "present" if entry.absent(folder) is None else "missing")
    console.show(table)


@app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {NAMES}.")],
    data: Folder = None,
) -> None:
    """Download a data set from its own site, check it and unpack it; an interrupted download goes on where it stopped.

    Example: `fngd data fetch cifar10 --data ~/data`
    """
    from fngd_bench.data import data_folder, progress
    from fngd_bench.data.fetch import fetch

    typer.echo(fetch(name, data_folder(data), progress.transfer))


@app.command("verify")
def data_verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help=f"Of {NAMES}; by default all that are there.")
    ] = None,
    data: Folder = None,
) -> None:
    """Read every byte of data sets and hold them against the published checksums.

    Example: `fngd data verify cifar10 cifar100`
    """
    from fngd_bench.data import data_folder, progress
    from fngd_bench.data.fetch import verify

    verify(names or (), data_folder(data), progress.counting, typer.echo)
