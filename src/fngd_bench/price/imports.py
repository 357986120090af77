"""`fngd bench import`: what `import fngd` costs as a multiple of `import torch`.

Each import happens in a fresh interpreter, which times the statement itself; the two take turns in an order drawn anew
for each pair. One pair goes first untimed, so that files are in the cache for both.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from fngd_bench.errors import InputError
from fngd_bench.here import provenance
from fngd_bench.price.race import Advance
from fngd_bench.price.record import ImportRecord

MODULES = ("fngd", "torch")


def measure(pairs: int, seed: int, advance: Advance) -> ImportRecord:
    """Time pairs of imports.

    Args:
        pairs: Timed pairs.
        seed: Of the order inside a pair.
        advance: Told of each pair when it is done, the untimed one included.

    Returns:
        The record.

    Raises:
        InputError: If `pairs` is below 1 or `seed` below 0.
    """
    if pairs < 1:
        raise InputError(f"pairs={pairs} must be at least 1; 11 give an interval worth reading")
    if seed < 0:
        raise InputError(f"seed={seed} must be 0 or above")
    order = np.random.default_rng(seed)
    taken = []
    for number in range(pairs + 1):
        taken.append(_pair(order))
        advance(f"pair {number}/{pairs}")
    seconds = {name: tuple(pair[name] for pair in taken[1:]) for name in MODULES}
    return ImportRecord(
        fngd_seconds=seconds["fngd"], torch_seconds=seconds["torch"], seed=seed, provenance=provenance()
    )


def _pair(order: np.random.Generator) -> dict[str, float]:
    return {name: import_seconds(name) for name in order.permutation(MODULES).tolist()}


def import_seconds(module: str) -> float:
    """How long a fresh interpreter takes over one import statement.

    Args:
        module: The module.

    Returns:
        Seconds.
    """
    code = f"from time import perf_counter as t; a = t(); import {module}; print(t() - a)"
    command = [sys.executable, "-P", "-c", code]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return float(answer.stdout)
