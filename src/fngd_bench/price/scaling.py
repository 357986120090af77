"""`fngd bench scaling`: how time and memory grow with batch size, width and depth, method by method.

At each size the methods run side by side in one process: a step of each in every round, in an order drawn anew, on the
same batch; batches change from round to round. Steps that come only now and then are timed apart and counted by how
often they come (`kinds`). What is left of a method's step when SGD's of the same round is taken away is what the method
itself costs. A quick step is timed more often than a slow one: rounds go on for two seconds.

Memory is what the optimizer keeps between two steps, counted to the byte. Peaks take a process for each number and are
measured on demand.
"""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from fngd_bench import clock
from fngd_bench.errors import InputError
from fngd_bench.here import provenance
from fngd_bench.price import kinds, subjects
from fngd_bench.price.batches import Batch
from fngd_bench.price.neighbours import Watch
from fngd_bench.price.peak import peak_bytes
from fngd_bench.price.race import Advance
from fngd_bench.price.runner import Runner
from fngd_bench.price.scaling_record import AXES, Measurement, PartTimes, Point, ScalingRecord, ScalingSettings

WARMUP = 2
"""Untimed rounds, after those who share have derived."""
ENOUGH_SECONDS, MOST_ROUNDS = 2.0, 51


def resolve(
    *, axes: str, subject: str, methods: str, rounds: int, scale: str = "cpu", peaks: bool = False, seed: int = 0
) -> ScalingSettings:
    """Check what is asked for.

    Args:
        axes: Comma-separated: what grows.
        subject: Comma-separated: layers, models, or some of them by name.
        methods: Comma-separated.
        rounds: The least number of timed rounds at a size.
        scale: How large the sizes are.
        peaks: Whether to measure peak memory too.
        seed: Of weights, batches and order.

    Returns:
        The settings.

    Raises:
        InputError: If one is out of range.
    """
    words = [word.strip() for word in axes.split(",") if word.strip()]
    if not words or not set(words) <= set(AXES):
        raise InputError(f"axis={axes!r}: name one or more of {', '.join(AXES)}")
    if rounds < 1:
        raise InputError(f"rounds={rounds} must be at least 1; 5 give a median worth fitting")
    if scale not in subjects.SCALES:
        raise InputError(f"scale={scale!r} is not known: choose one of {', '.join(subjects.SCALES)}")
    if seed < 0:
        raise InputError(f"seed={seed} must be 0 or above")
    wanted = ScalingSettings(
        scale=scale,
        subjects=subjects.parse(subject),
        axes=tuple(axis for axis in AXES if axis in words),
        methods=kinds.parse(methods),
        rounds=rounds,
        warmup=WARMUP,
        peaks=peaks,
        seed=seed,
    )
    if not points(wanted):
        raise InputError(f"axis={axes!r}: {subject} does not grow that way; add a model, or another axis")
    return wanted


def points(wanted: ScalingSettings) -> tuple[Point, ...]:
    """Every size that is measured.

    Args:
        wanted: The settings.

    Returns:
        The points in order.
    """
    rows = [(subjects.SUBJECTS[name], axis) for name in wanted.subjects for axis in wanted.axes]
    return tuple(point for subject, axis in rows for point in subjects.points(subject, axis, wanted.scale))


def pieces(wanted: ScalingSettings) -> int:
    """How often `measure` will report progress.

    Args:
        wanted: The settings.

    Returns:
        Rounds of all points, and peaks.
    """
    each = wanted.warmup + wanted.rounds + wanted.peaks * len(wanted.methods)
    return each * len(points(wanted))


def measure(wanted: ScalingSettings, advance: Advance) -> ScalingRecord:
    """Measure every method at every size.

    Args:
        wanted: The settings.
        advance: Told of each round and peak when it is done.

    Returns:
        The record.
    """
    bench = _Bench(wanted, np.random.default_rng(wanted.seed), Watch(), advance)
    measured = [row for point in points(wanted) for row in _at(point, bench)]
    surroundings = bench.watch.seen()
    if wanted.peaks:  # after all times, since the processes of the peaks count as others
        measured = [_with_peak(row, wanted, advance) for row in measured]
    return ScalingRecord(settings=wanted, measured=tuple(measured), surroundings=surroundings, provenance=provenance())


class _Bench(NamedTuple):
    """What all sizes share."""

    wanted: ScalingSettings
    order: np.random.Generator
    watch: Watch
    advance: Advance


def _at(point: Point, bench: _Bench) -> list[Measurement]:
    """All methods at one size."""
    with torch.random.fork_rng():
        begin = subjects.start(point, bench.wanted.seed)
        every = [kind for method in bench.wanted.methods for kind in kinds.kinds(method)]
        runners = [Runner(kind, copy.deepcopy(begin.model), begin.loss) for kind in every]
        times = _interleave(runners, begin.batches, bench, f"{point.subject}, {point.axis} {point.size}")
    parameters = sum(parameter.numel() for parameter in begin.model.parameters())
    return [
        Measurement(
            point=point,
            method=method,
            parameters=parameters,
            parts=tuple(_part(runner, own) for runner, own in zip(runners, times, strict=True) if _of(runner, method)),
            state_bytes=max(runner.state_bytes for runner in runners if _of(runner, method)),
            peak_bytes=None,
        )
        for method in bench.wanted.methods
    ]


def _interleave(runners: list[Runner], batches: tuple[Batch, ...], bench: _Bench, place: str) -> list[list[float]]:
    """Seconds of every timed step, a list for each runner."""
    wanted, order, watch, advance = bench
    gc.collect()
    for runner in runners:
        runner.derive(batches)
    for number in range(wanted.warmup):
        elapsed = _round(runners, batches[number % len(batches)], order)
        advance(f"{place}: warm-up {number + 1}/{wanted.warmup}")
    for runner in runners:
        runner.check_phase()
    count = max(wanted.rounds, min(MOST_ROUNDS, round(ENOUGH_SECONDS / sum(elapsed))))

    def timed(before: int) -> list[float]:
        seconds = _round(runners, batches[(wanted.warmup + before) % len(batches)], order)
        if before < wanted.rounds:
            advance(f"{place}: round {before + 1}/{count}")
        return seconds

    return [list(times) for times in zip(*watch.calm(timed, count), strict=True)]


def _round(runners: list[Runner], batch: Batch, order: np.random.Generator) -> list[float]:
    """One step of each runner, in an order of its own; seconds in the runners' order."""
    elapsed = [0.0] * len(runners)
    for column in order.permutation(len(runners)).tolist():
        step = partial(runners[column].step, batch)
        elapsed[column] = clock.seconds(step)
    return elapsed


def _of(runner: Runner, method: str) -> bool:
    return runner.kind.method == method


def _part(runner: Runner, seconds: list[float]) -> PartTimes:
    kind = runner.kind
    return PartTimes(name=kind.name, share=kind.share, seconds=tuple(round(second, 8) for second in seconds))


def _with_peak(row: Measurement, wanted: ScalingSettings, advance: Advance) -> Measurement:
    peak = peak_bytes(row.point, row.method, wanted.seed)
    advance(f"{row.point.subject}, {row.point.axis} {row.point.size}: peak memory of {row.method}")
    return replace(row, peak_bytes=peak)
