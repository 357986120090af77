"""`python -m fngd_bench`, alone and as one of torchrun's processes: the same words and the same status."""

import os
import subprocess
import sys

import pytest

RANK = {
    "TORCHELASTIC_RUN_ID": "a",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
}
COMMANDS = [
    (("data", "list"), 0),
    (("train", "nonsense", "sgd-m"), 2),
    (("train", "--nonsense"), 2),
]


@pytest.mark.parametrize(("arguments", "status"), COMMANDS, ids=str)
def test_a_process_of_torchruns_ends_as_any_other(arguments, status):
    alone, rank = (
        subprocess.run(
            [sys.executable, "-m", "fngd_bench", *arguments],
            env=os.environ | extra,
            capture_output=True,
            text=True,
            check=False,
        )
        for extra in ({}, RANK)
    )
    assert (alone.returncode, rank.returncode) == (status, status), rank.stderr
    assert (alone.stdout, alone.stderr) == (rank.stdout, rank.stderr)
