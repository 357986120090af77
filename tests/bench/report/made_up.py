"""Runs that nobody trained: small ones by hand, and a whole folder that looks like a real comparison.

`python tests/bench/report/made_up.py FOLDER` writes the folder, to look at a page of it.
"""

import math
import random
import sys
from dataclasses import replace
from pathlib import Path

from origin import ORIGIN

from fngd_bench.runs.events import (
    Coefficients,
    End,
    Epoch,
    Gram,
    Header,
    LayerCoefficients,
    RunSettings,
    Skipped,
    Steps,
)
from fngd_bench.runs.journal import Journal
from fngd_bench.runs.reader import FILE, Run, read

SETTINGS = RunSettings(
    workload="digits-cnn",
    scale="smoke",
    method="sgd-m",
    seed=0,
    hyperparameters={"lr": 0.1},
    epochs=3,
    batch=64,
    steps_per_epoch=2,
    schedule="steps",
    metric="accuracy",
    target=0.9,
)
LAYERS = tuple(f"layers.{k}.{part}" for k in range(4) for part in ("convolution", "attention.out_proj", "linear"))


def hand_made(
    metrics=(0.5, 0.8, 0.95), *, end="finished", step_ms=100.0, peak_mib=10, sections=None, origin=ORIGIN, **settings
):
    """A run with one metric for each epoch, two equal steps an epoch, and times one can add up in one's head."""
    wanted = replace(SETTINGS, **settings)
    seconds = step_ms / 1e3
    epochs = tuple(
        Epoch(
            epoch=k,
            step=2 * k,
            seconds=2 * k * seconds,
            sections=sections or {"forward": 0.5 * seconds, "backward": 1.5 * seconds},
            lr=0.1,
            train_loss=1.0 / k,
            test_loss=2.0 / k,
            metric=metric,
        )
        for k, metric in enumerate(metrics, 1)
    )
    steps = 2 * len(epochs)
    return Run(
        path=Path(f"{wanted.method}-{wanted.seed}") / FILE,
        header=Header(settings=wanted, provenance=origin, parameters=1000),
        losses=dict.fromkeys(range(steps), 1.0),
        step_seconds=dict.fromkeys(range(steps), seconds),
        epochs=epochs,
        coefficients=(),
        grams=(),
        skipped=(),
        resumed=(),
        end=end and End(step=steps, reason=end, seconds=steps * seconds, peak_bytes=peak_mib * 2**20),
        torn=False,
    )


def layer(**values):
    """The coefficients of a layer that has derived 100 batches."""
    numbers = {"coefficient_mean": 0.9, "coefficient_spread": 0.1, "shared_spread": 0.01, "damping": 1e-3}
    counts = {"effective_rank": 20.0, "cosine": 0.99, "batches": 100, "skipped": 0}
    return LayerCoefficients(**{**numbers, **counts, **values})


# What a made-up comparison looks like: ceiling, speed, ms a step in the first and in later epochs, MiB.
METHODS = {
    "sgd-m": (0.962, 0.75, 40.0, 40.0, 210),
    "adamw": (0.955, 0.95, 43.0, 43.0, 231),
    "kfac": (0.966, 1.05, 71.0, 71.0, 305),
    "fngd": (0.968, 0.90, 78.0, 41.0, 238),
    "fngd-constant": (0.967, 0.88, 78.0, 40.3, 236),
}
EPOCHS, STEPS, GRAM = 8, 20, 32


def write_comparison(folder, methods=METHODS, *, workload="cifar10-resnet32", seeds=(0, 1, 2), target=0.95):
    """Records of every method and seed; one run diverges, one is stopped, one has no end."""
    folder = Path(folder)
    for method, traits in methods.items():
        for seed in seeds:
            settings = replace(
                SETTINGS,
                workload=workload,
                scale="cpu",
                method=method,
                seed=seed,
                hyperparameters={"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "nesterov": False},
                epochs=EPOCHS,
                batch=128,
                steps_per_epoch=STEPS,
                target=target,
            )
            _write_run(folder, settings, traits, random.Random(f"{workload} {method} {seed}"))


def _write_run(folder, settings, traits, chance):
    place = folder / settings.method / f"seed{settings.seed}"
    place.mkdir(parents=True)
    ends = {("adamw", 2): ("diverged", 3), ("kfac", 1): ("stopped", 5), ("fngd-constant", 2): (None, 6)}
    reason, epochs = ends.get((settings.method, settings.seed), ("finished", EPOCHS))
    origin = replace(ORIGIN, date=f"2026-01-0{2 + settings.seed}T03:04:05+00:00")
    with Journal(place / FILE) as journal:
        journal.write(Header(settings=settings, provenance=origin, parameters=464_154))
        seconds = 0.0
        for epoch in range(1, epochs + 1):
            seconds = _write_epoch(journal, settings.method, traits, epoch, seconds, chance)
        if reason == "diverged":
            journal.write(Skipped(step=epochs * STEPS, reason="the loss is nan"))
        if reason is not None:
            peak = round((traits[4] + chance.random()) * 2**20)
            journal.write(End(step=epochs * STEPS, reason=reason, seconds=seconds, peak_bytes=peak))


def _write_epoch(journal, method, traits, epoch, seconds, chance):
    ceiling, speed, first_ms, later_ms, _ = traits
    mean = (first_ms if epoch == 1 else later_ms) / 1e3
    times = tuple(mean * chance.uniform(0.95, 1.08) for _ in range(STEPS))
    loss = 2.3 * math.exp(-speed * epoch / 1.6) + 0.05 * chance.uniform(0.8, 1.2)
    journal.write(
        Steps(first=(epoch - 1) * STEPS, losses=tuple(loss * chance.uniform(0.9, 1.1) for _ in times), seconds=times)
    )
    shares = {"data": 0.04, "forward": 0.33, "backward": 0.58, "update": 0.05}
    if method == "kfac":
        shares = {"data": 0.02, "forward": 0.2, "backward": 0.35, "precondition": 0.39, "update": 0.04}
    journal.write(
        Epoch(
            epoch=epoch,
            step=epoch * STEPS,
            seconds=seconds + sum(times),
            sections={name: share * sum(times) for name, share in shares.items()},
            lr=0.1,
            train_loss=loss,
            test_loss=1.1 * loss + 0.04 * chance.random(),
            metric=ceiling - 0.62 * math.exp(-speed * epoch) - 0.006 * chance.random(),
        )
    )
    if method.startswith("fngd"):
        journal.write(Coefficients(epoch=epoch, layers={name: _layer(k, chance) for k, name in enumerate(LAYERS)}))
    if method.startswith("fngd") and epoch in {1, EPOCHS}:
        journal.write(Gram(epoch=epoch, layers={name: _gram(k, chance) for k, name in enumerate(LAYERS[::3])}))
    return seconds + sum(times)


def _layer(k, chance):
    inside = 0.02 + 0.008 * k * chance.uniform(0.9, 1.1)
    return layer(
        coefficient_mean=0.99 - 0.004 * k,
        coefficient_spread=inside,
        shared_spread=inside / math.sqrt(STEPS) * chance.uniform(0.8, 1.2),
        damping=1e-4 * 3.0 ** (k % 5),
        effective_rank=18.0 + 6 * k,
        cosine=0.999 - 0.001 * k,
        batches=STEPS,
    )


def _gram(k, chance):
    """The normalised Gram matrix of random vectors of four classes."""
    directions = [[chance.gauss(0, 1) for _ in range(12)] for _ in range(4)]
    samples = [[d + (1 + k) * chance.gauss(0, 0.5) for d in directions[m % 4]] for m in range(GRAM)]
    rows = [[sum(a * b for a, b in zip(u, v, strict=True)) for v in samples] for u in samples]
    norm = math.sqrt(sum(value**2 for row in rows for value in row))
    return tuple(tuple(value / norm for value in row) for row in rows)


def read_all(folder):
    return [read(path) for path in sorted(Path(folder).rglob(FILE))]


if __name__ == "__main__":
    write_comparison(sys.argv[1])
