"""`fngd bench`: what a step, a route or an import costs, and how that grows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fngd_bench.cli.options import METHODS, MODELS, Json, Seed

app = typer.Typer(
    help="Measure what a step, a route or an import costs, and how that grows.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command("step")
def bench_step(
    model: Annotated[str, typer.Option(help=f"{MODELS}.")],
    methods: Annotated[
        str, typer.Option(help=f"Comma-separated, of {METHODS}. sgd is always measured.")
    ] = "sgd,fngd-share,fngd-constant,fngd-derive",
    steps: Annotated[int, typer.Option(help="Timed steps of each method.")] = 60,
    batch: Annotated[int | None, typer.Option(help="Samples of a batch; by default 128, 64 for transformer.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images, by default the model's own.")] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile every method's model first (torch.compile); times only.")
    ] = False,
    processes: Annotated[
        int,
        typer.Option(help="Fresh processes to spread the steps over: a place in memory is worth a percent or two."),
    ] = 1,
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

    wanted = steps_bench.resolve(
        model,
        parse(methods),
        steps=steps,
        batch=batch,
        image_size=image_size,
        seed=seed,
        compiled=compiled,
        processes=processes,
    )
    if json is not None:
        files.check_writable(json)

    def keep(found: record.StepRecord) -> None:
        if json is not None:
            record.write(found, json)

    with console.progress(steps_bench.pieces(wanted)) as advance:
        result = steps_bench.measure(wanted, advance, keep)
    keep(result)
    console.print_steps(result, prices(result))


@app.command("scaling")
def bench_scaling(
    axis: Annotated[str, typer.Option(help="Comma-separated: what grows.")] = "batch,width,depth",
    subject: Annotated[
        str, typer.Option(help="Comma-separated, of layer (linear, convolution) and model (mlp, resnet), or by name.")
    ] = "layer,model",
    methods: Annotated[
        str,
        typer.Option(help="Comma-separated, as in `fngd bench step`, except fngd-refreshed. sgd is always measured."),
    ] = "sgd,fngd-share,fngd-derive,kfac,eva,shampoo",
    rounds: Annotated[int, typer.Option(help="Timed rounds at each size, at least; quick steps get more.")] = 5,
    scale: Annotated[str, typer.Option(help="How large the sizes are: smoke or cpu.")] = "cpu",
    peaks: Annotated[
        bool, typer.Option("--peaks", help="Measure peak memory too, in a process for each number: seconds apiece.")
    ] = False,
    seed: Seed = 0,
    json: Json = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: one HTML page that opens offline.")] = None,
    read: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measure nothing: take a record that --json wrote.")
    ] = None,
) -> None:
    """Fit how time and memory grow with batch size, width and depth, method by method.

    Example: `fngd bench scaling --subject layer --axis batch,width --json scaling.json --out scaling.html`
    """
    from fngd_bench import console, files
    from fngd_bench.price import record, verdict
    from fngd_bench.report import scaling as scaling_report

    for path in (json, out):
        if path is not None:
            files.check_writable(path)
    if read is not None:
        result = record.read_scaling_record(read)
    else:
        from fngd_bench.price import scaling

        wanted = scaling.resolve(
            axes=axis, subject=subject, methods=methods, rounds=rounds, scale=scale, peaks=peaks, seed=seed
        )
        with console.progress(scaling.pieces(wanted)) as advance:
            result = scaling.measure(wanted, advance)
    if json is not None:
        record.write(result, json)
    console.show(scaling_report.terminal_table(result))
    found = verdict.verdicts(result)
    disturbance = result.surroundings.disturbance("Growth")
    for sentence in (*(each.sentence for each in found), verdict.answer(found), disturbance):
        if sentence is not None:
            typer.echo(sentence)
    if out is not None:
        scaling_report.write_page(result, out)
        typer.echo(f"{out}: the page, open it in a browser")


@app.command("routes")
def bench_routes(
    model: Annotated[str, typer.Option(help=f"{MODELS}.")],
    batch: Annotated[int | None, typer.Option(help="Samples of a batch; by default 128, 64 for transformer.")] = None,
    rounds: Annotated[int, typer.Option(help="Timed calls of each route.")] = 7,
    budget: Annotated[
        int | None, typer.Option(metavar="MIB", help="Scratch memory of a Gram matrix; by default the library's.")
    ] = None,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Time every route to every Gram matrix of a model, and hold the planner's choice against the best one.

    Example: `fngd bench routes --model resnet32 --json resnet32.json`
    """
    from fngd_bench import console, files
    from fngd_bench.price import choices, record
    from fngd_bench.price import routes as routes_bench
    from fngd_bench.report import routes as routes_report

    wanted = routes_bench.resolve(model, rounds=rounds, batch=batch, budget=budget, seed=seed)
    if json is not None:
        files.check_writable(json)
    found = routes_bench.weights(wanted)
    with console.progress(routes_bench.pieces(wanted, found)) as advance:
        result = routes_bench.measure(wanted, found, advance)
    if json is not None:
        record.write(result, json)
    console.show(routes_report.terminal_table(result))
    for sentence in (choices.answer(choices.choices(result)), result.surroundings.disturbance(model)):
        if sentence is not None:
            typer.echo(sentence)


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
