"""`fngd train` on two ranks, one of which dies: torchrun restarts both, and the run goes on from its last checkpoint.

Run with: torchrun --standalone --nproc-per-node 2 --max-restarts 1 examples/elastic.py
"""

import os
import shutil
import signal
import tempfile
from pathlib import Path

from fngd_bench.runs import reader
from fngd_bench.train.loop import Pace
from fngd_bench.train.run import Request, run

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
out = Path(tempfile.gettempdir()) / f"fngd-{os.environ['TORCHELASTIC_RUN_ID']}"  # all ranks see it, in all attempts


def report(progress):
    if (rank, attempt, progress.step) == (1, 0, 11):
        os.kill(os.getpid(), signal.SIGKILL)


pace = Pace(checkpoint_seconds=0.0)  # after every step
folder, end = run(Request(workload="digits-cnn", method="fngd", scale="smoke", out=out, pace=pace), report)
if rank == 0:
    record = reader.read(folder.record)
    print(f"{record.provenance.ranks} ranks; lost one, went on from step {record.resumed[0].step}")
    print(f"{end.reason} after {end.step} steps, of which the record has {len(record.losses)}, each once")
    shutil.rmtree(out)
