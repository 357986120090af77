"""One rank of a run that dies at a moment drawn for each attempt; torchrun starts it, and starts it again.

In the first attempts one of two ranks is killed, some steps and a moment after the start. In the next, rank 0 is killed
when half of a checkpoint is written. The last attempt is left in peace.
"""

import os
import random
import signal
import sys
import threading
from pathlib import Path

from fngd_bench.train import checkpoint, torchrun
from fngd_bench.train.loop import Pace
from fngd_bench.train.run import Request, run

RANDOM_KILLS = 3
KILLS = RANDOM_KILLS + 1


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at_random(attempt):
    """A report that counts the steps of this attempt and kills the rank that it is about."""
    drawn = random.Random(attempt)
    rank, steps, seconds = drawn.randrange(2), drawn.randint(1, 7), drawn.uniform(0, 0.05)
    seen = []

    def report(progress):
        seen.append(progress)
        if torchrun.rank() == rank and len(seen) == steps:
            threading.Timer(seconds, die).start()

    return report


def half_written(path, content):
    path.write_bytes(bytes(content.getbuffer()[: len(content.getbuffer()) // 2]))
    die()


def main(out):
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    report = killed_at_random(attempt) if attempt < RANDOM_KILLS else lambda progress: None
    if attempt == RANDOM_KILLS:
        checkpoint._write = half_written
    pace = Pace(checkpoint_seconds=0.0, record_seconds=0.0)
    run(Request(workload="digits-cnn", method="fngd", scale="smoke", epochs=4, out=out, pace=pace), report)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
