"""Peak memory of a method at one size, measured in a process of its own: `python -m fngd_bench.price.peak`.

As in `memory`: the peak of resident memory minus what the process held right before the model was built, in a process
that gives large blocks back as soon as they are freed. A method that shares starts with coefficients of one, since
their values do not matter here, and deriving them would be the peak.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

import torch

from fngd_bench.errors import InputError
from fngd_bench.price import subjects
from fngd_bench.price.kinds import kinds
from fngd_bench.price.memory import PROMPT_MALLOC, STEPS
from fngd_bench.price.runner import Runner
from fngd_bench.price.scaling_record import Point
from fngd_bench.resident import peak_resident_bytes, resident_bytes


def peak_bytes(point: Point, method: str, seed: int) -> int:
    """Take a few steps in a fresh process.

    Args:
        point: The size.
        method: Whose steps; of several kinds, the one that does everything.
        seed: Of weights and batches.

    Returns:
        Peak resident bytes above those before the model was built.

    Raises:
        InputError: If the process was killed, which is what happens when memory runs out.
    """
    asked = json.dumps({"point": asdict(point), "method": method, "seed": seed, "threads": torch.get_num_threads()})
    command = [sys.executable, "-P", "-m", "fngd_bench.price.peak", asked]
    environment = {**os.environ, **PROMPT_MALLOC}
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)  # noqa: S603
    if answer.returncode < 0:
        raise InputError(
            f"the process that ran {method} on {point.subject} with {point.axis} {point.size} was killed: most likely "
            "memory ran out; leave out --peaks, or that subject"
        )
    answer.check_returncode()
    return int(answer.stdout)


def run_here(point: Point, method: str, seed: int) -> int:
    """Take a few steps in this process, meant for one that did nothing else.

    Args:
        point: The size.
        method: Whose steps.
        seed: Of weights and batches.

    Returns:
        Growth of its peak in bytes.
    """
    with torch.random.fork_rng():
        before = resident_bytes()
        begin = subjects.start(point, seed, batches=1)
        runner = Runner(kinds(method)[-1], begin.model, begin.loss)
        runner.share_at_once(point.batch)
        runner.check_phase()
        for _ in range(STEPS):
            runner.step(begin.batches[0])
        return peak_resident_bytes() - before


def main(words: list[str]) -> None:
    """Answer on the standard output.

    Args:
        words: One word, the request as JSON.
    """
    asked = json.loads(words[0])
    torch.set_num_threads(asked["threads"])
    sys.stdout.write(str(run_here(Point(**asked["point"]), asked["method"], asked["seed"])))


if __name__ == "__main__":
    main(sys.argv[1:])
