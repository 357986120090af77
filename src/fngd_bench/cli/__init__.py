"""The command `fngd`, one file a group of commands.

Torch is imported by the commands that need it, when they run, so that `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from fngd_bench.cli import bench, data
from fngd_bench.cli.demo import demo
from fngd_bench.cli.doctor import doctor
from fngd_bench.cli.report import report
from fngd_bench.cli.train import compare, train
from fngd_bench.cli.tune import tune
from fngd_bench.errors import InputError
from fngd_bench.train import torchrun

STOPPED = 130
"""What typer makes of Ctrl-C."""

app = typer.Typer(
    help="Fast natural gradient descent: a demo, training and comparing, its price, what it would do to a model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for command in (demo, train, compare, tune, report, doctor):
    app.command()(command)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process; what the user can put right is said in one line.

    Args:
        arguments: The words after `fngd`; those of the process by default.

    Raises:
        SystemExit: Always, with 0, 2 for wrong input, 130 when stopped by Ctrl-C.
    """
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="fngd", standalone_mode=False)
    except InputError as error:
        raise SystemExit(_refuse(str(error))) from None
    except TyperException as error:
        if torchrun.rank() > 0:  # rank 0 says the same
            torchrun.leave()
        said = error.format_message().rstrip(".") or "a command is missing"
        raise SystemExit(_refuse(f"{said}; `--help` after a command shows how it is used")) from None
    if code == STOPPED:
        typer.echo("fngd: stopped", err=True)
    raise SystemExit(code or 0)


def _refuse(message: str) -> int:
    """Say what is wrong in one line."""
    typer.echo(f"fngd: {' '.join(message.split())}", err=True)
    return 2
