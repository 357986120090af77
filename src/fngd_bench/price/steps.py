"""`fngd bench step`: what a training step of each method costs, in time and memory, as multiples of fused SGD's.

Times come from processes that interleave the methods (`heats`, `race`), memory from a process for each (`memory`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fngd_bench import models
from fngd_bench.errors import InputError
from fngd_bench.here import provenance
from fngd_bench.models import Images
from fngd_bench.price import heats, memory, race
from fngd_bench.price.methods import DERIVE_STEPS, METHODS, check_steps
from fngd_bench.price.record import Measured, StepRecord, StepSettings

WARMUP = DERIVE_STEPS + 3
"""Untimed rounds: deriving, then a few in the phase that is timed."""
MEMORY_RUNS = 3
"""Fresh processes for each method's peak memory."""


def resolve(
    model: str,
    methods: tuple[str, ...],
    *,
    steps: int,
    batch: int | None = None,
    image_size: int | None = None,
    seed: int = 0,
    compiled: bool = False,
    processes: int = 1,
) -> StepSettings:
    """Check what is asked for and fill in the model's defaults.

    Args:
        model: Name of the model.
        methods: Names of the methods, the reference among them.
        steps: Timed steps of each method.
        batch: Samples, M.
        image_size: Side of the images, for models of images.
        seed: Of weights, batch and order.
        compiled: Whether every method's model is compiled.
        processes: Fresh processes that the steps are spread over.

    Returns:
        The resolved settings.

    Raises:
        InputError: If one is out of range.
    """
    entry = models.entry(model)
    check_steps(steps, methods, processes)
    batch = entry.batch if batch is None else batch
    if batch < 2:
        raise InputError(f"batch={batch} must be at least 2: BatchNorm and coefficients need samples to compare")
    if seed < 0:
        raise InputError(f"seed={seed} must be 0 or above")
    if compiled and (twice := [name for name in methods if METHODS[name].second_order]):
        raise InputError(
            f"{twice[0]} differentiates twice, which a compiled model cannot: leave it out, or leave out --compile"
        )
    return StepSettings(
        model=model,
        classes=entry.classes,
        batch=batch,
        image_size=_image_size(entry, image_size),
        methods=methods,
        steps=steps,
        warmup=WARMUP,
        memory_runs=0 if compiled else MEMORY_RUNS,
        seed=seed,
        compiled=compiled,
        processes=processes,
    )


def _image_size(entry: models.ModelEntry, size: int | None) -> int | None:
    if not isinstance(entry.inputs, Images):
        if size is not None:
            raise InputError(f"image-size={size} makes no sense for {entry.name}, which reads words: leave it out")
        return None
    size = entry.inputs.size if size is None else size
    if size < entry.inputs.smallest:
        raise InputError(f"image-size={size} must be at least {entry.inputs.smallest} for {entry.name}")
    return size


def pieces(wanted: StepSettings) -> int:
    """How often `measure` will report progress.

    Args:
        wanted: Resolved settings.

    Returns:
        Rounds and memory runs.
    """
    return wanted.processes * wanted.warmup + wanted.steps + wanted.memory_runs * len(wanted.methods)


def measure(wanted: StepSettings, advance: race.Advance, keep: Callable[[StepRecord], None]) -> StepRecord:
    """Time the methods, then measure their memory.

    Args:
        wanted: Resolved settings.
        advance: Told of each round and memory run when it is done.
        keep: Handed a record of the times as soon as there is one: memory takes as long again.

    Returns:
        The record.
    """
    heat = heats.run(wanted, advance)
    timed = StepRecord(
        settings=replace(wanted, memory_runs=0),
        parameters=heat.parameters,
        measured=tuple(
            Measured(method=name, period=METHODS[name].period, seconds=tuple(seconds), peak_bytes=())
            for name, seconds in zip(wanted.methods, heat.seconds, strict=True)
        ),
        surroundings=heat.surroundings,
        provenance=provenance(),
    )
    keep(timed)
    peaks = _peaks(heat.requests, wanted.memory_runs, advance)
    measured = (replace(row, peak_bytes=tuple(peak)) for row, peak in zip(timed.measured, peaks, strict=True))
    return replace(timed, settings=wanted, measured=tuple(measured))


def _peaks(requests: list[memory.Request], runs: int, advance: race.Advance) -> list[list[int]]:
    """Peak bytes of each run, a list for each request; the runs of the methods take turns."""
    peaks: list[list[int]] = [[] for _ in requests]
    for run in range(runs):
        for column, request in enumerate(requests):
            peaks[column].append(memory.peak_bytes(request))
            advance(f"peak memory of {request.method}, {run + 1}/{runs}")
    return peaks
