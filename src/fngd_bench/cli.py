"""The command `fngd`. Torch is imported by the commands that need it, so that `--help` answers at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from fngd_bench.errors import InputError

app = typer.Typer(
    help="Fast natural gradient descent: a demo, its price, and what it would do to a model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
bench = typer.Typer(help="Measure what a step, or an import, costs.", no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(bench, name="bench")

MODELS = "resnet32, resnet110, vgg11, resnet18, resnet34, resnet50, transformer or small-cnn"
METHODS = "sgd, fngd-share, fngd-constant, fngd-derive, fngd-refreshed"
STOPPED = 130
"""What typer makes of Ctrl-C."""
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the record, raw times included.")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn.")]


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(help="Passes over the training images, at least 2.")] = 8,
    seed: Seed = 0,
) -> None:
    """Train a small CNN on scikit-learn's digits with SGD and with FNGD, and show them side by side.

    Example: `fngd demo`
    """
    from fngd_bench import console, demo_report
    from fngd_bench.demo import Plan, run

    plan = Plan(epochs=epochs, seed=seed)
    with console.progress(plan.epochs) as advance:
        outcome = run(plan, advance)
    console.show(demo_report.table(plan, outcome))
    for sentence in demo_report.sentences(outcome):
        typer.echo(sentence)


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(help=f"{MODELS}.")],
    batch: Annotated[int, typer.Option(help="Samples of the example batch, at least 2.")] = 2,
) -> None:
    """Say which layers of a model FNGD would precondition, which not, and why.

    Example: `fngd doctor resnet32`
    """
    import torch

    import fngd
    from fngd_bench import race, steps

    with torch.random.fork_rng():
        begin = race.start(steps.resolve(model, ("sgd",), steps=1, batch=batch))
    typer.echo(str(fngd.doctor(begin.model, *begin.batch.inputs)))


@bench.command("step")
def bench_step(
    model: Annotated[str, typer.Option(help=f"{MODELS}.")],
    methods: Annotated[
        str, typer.Option(help=f"Comma-separated, of {METHODS}. sgd is always measured.")
    ] = "sgd,fngd-share,fngd-constant,fngd-derive",
    steps: Annotated[int, typer.Option(help="Timed steps of each method.")] = 60,
    batch: Annotated[int | None, typer.Option(help="Samples of a batch; by default 128, 64 for transformer.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images, by default the model's own.")] = None,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Price a training step of several methods, interleaved in one process, in units of fused SGD's.

    Example: `fngd bench step --model resnet32 --methods sgd,fngd-share --steps 60 --json resnet32.json`
    """
    from fngd_bench import console, files, record
    from fngd_bench import steps as steps_bench
    from fngd_bench.methods import parse
    from fngd_bench.prices import prices

    wanted = steps_bench.resolve(model, parse(methods), steps=steps, batch=batch, image_size=image_size, seed=seed)
    if json is not None:
        files.check_writable(json)
    with console.progress(steps_bench.pieces(wanted)) as advance:
        result = steps_bench.measure(wanted, advance)
    if json is not None:
        record.write(result, json)
    console.print_steps(result, prices(result))


@bench.command("import")
def bench_import(
    pairs: Annotated[int, typer.Option(help="Timed pairs of fresh processes.")] = 11,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Price `import fngd` in units of `import torch`, each in fresh processes.

    Example: `fngd bench import --json import.json`
    """
    from fngd_bench import console, files, imports, record
    from fngd_bench.prices import import_price

    if json is not None:
        files.check_writable(json)
    with console.progress(pairs + 1) as advance:
        result = imports.measure(pairs, seed, advance)
    if json is not None:
        record.write(result, json)
    typer.echo(f"import fngd takes {import_price(result).text()} × import torch")


@bench.command("table")
def bench_table(
    records: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Records that --json wrote.")],
    readme: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Put the table between its marker lines in this file.")
    ] = None,
) -> None:
    """Turn records into the Markdown table of prices.

    Example: `fngd bench table benchmarks/*.json --readme README.md`
    """
    from fngd_bench import files, price_table, record

    text = price_table.table([record.read(path) for path in records])
    if readme is None:
        typer.echo(text)
        return
    files.check_writable(readme)
    files.write_text(readme, price_table.insert(files.read_text(readme), text))
    typer.echo(f"{readme}: table of {len(records)} records written")


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
        said = error.format_message().rstrip(".") or "a command is missing"
        raise SystemExit(_refuse(f"{said}; `--help` after a command shows how it is used")) from None
    if code == STOPPED:
        typer.echo("fngd: stopped", err=True)
    raise SystemExit(code or 0)


def _refuse(message: str) -> int:
    """Say what is wrong in one line."""
    typer.echo(f"fngd: {' '.join(message.split())}", err=True)
    return 2


if __name__ == "__main__":
    main()
