"""`fngd bench`: what a step, or an import, costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fngd_bench.cli.options import METHODS, MODELS, Json, Seed

app = typer.Typer(help="Measure what a step, or an import, costs.", no_args_is_help=True, rich_markup_mode="markdown")


@app.command("step")
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
    from fngd_bench import console, files
    from fngd_bench.price import record
    from fngd_bench.price import steps as steps_bench
    from fngd_bench.price.methods import parse
    from fngd_bench.price.prices import prices

    wanted = steps_bench.resolve(model, parse(methods), steps=steps, batch=batch, image_size=image_size, seed=seed)
    if json is not None:
        files.check_writable(json)
    with console.progress(steps_bench.pieces(wanted)) as advance:
        result = steps_bench.measure(wanted, advance)
    if json is not None:
        record.write(result, json)
    console.print_steps(result, prices(result))


@app.command("import")
def bench_import(
    pairs: Annotated[int, typer.Option(help="Timed pairs of fresh processes.")] = 11,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Price `import fngd` in units of `import torch`, each in fresh processes.

    Example: `fngd bench import --json import.json`
    """
    from fngd_bench import console, files
    from fngd_bench.price import imports, record
    from fngd_bench.price.prices import import_price

    if json is not None:
        files.check_writable(json)
    with console.progress(pairs + 1) as advance:
        result = imports.measure(pairs, seed, advance)
    if json is not None:
        record.write(result, json)
    typer.echo(f"import fngd takes {import_price(result).text()} × import torch")


@app.command("table")
def bench_table(
    records: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Records that --json wrote.")],
    readme: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Put the table between its marker lines in this file.")
    ] = None,
) -> None:
    """Turn records into the Markdown table of prices.

    Example: `fngd bench table benchmarks/*.json --readme README.md`
    """
    from fngd_bench import files
    from fngd_bench.price import record
    from fngd_bench.price import table as price_table

    text = price_table.table([record.read(path) for path in records])
    if readme is None:
        typer.echo(text)
        return
    files.check_writable(readme)
    files.write_text(readme, price_table.insert(files.read_text(readme), text))
    typer.echo(f"{readme}: table of {len(records)} records written")
