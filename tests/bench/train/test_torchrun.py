"""`fngd train` under torchrun: two ranks, killed and stopped, end as if nobody had touched them."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mortal import KILLS
from outcomes import assert_same, wait_for

from fngd_bench.errors import InputError
from fngd_bench.runs import reader
from fngd_bench.train import checkpoint
from fngd_bench.train.run import Request, folder

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TRAIN = ["-m", "fngd_bench", "train", "digits-cnn", "fngd", "--scale", "smoke", "--epochs", "4"]
SECONDS = 120


def torchrun(*words):
    return subprocess.run([*TORCHRUN, *words], capture_output=True, text=True, timeout=SECONDS, check=False)


def request_in(out):
    return Request(workload="digits-cnn", method="fngd", scale="smoke", epochs=4, out=out)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run of two ranks from the command line, its output and its record."""
    request = request_in(tmp_path_factory.mktemp("undisturbed"))
    done = torchrun(*TRAIN, "--out", str(request.out))
    assert done.returncode == 0, done.stderr
    return request, done, reader.read(folder(request).record)


def test_rank_0_alone_speaks_and_the_record_says_how_many_there_were(undisturbed):
    _, done, run = undisturbed
    assert done.stdout.count("finished: accuracy") == 1
    assert "Warning" not in done.stderr
    assert run.end.reason == "finished"
    assert (run.provenance.ranks, run.provenance.backend) == (2, "gloo")
    assert all(layer.batches == 8 for page in run.coefficients for layer in page.layers.values())


def test_killed_again_and_again_the_job_restarts_and_ends_the_same(undisturbed, tmp_path):
    expected_request, _, expected = undisturbed
    request = request_in(tmp_path)
    mortal = str(Path(__file__).parent / "mortal.py")
    done = torchrun("--max-restarts", str(KILLS), mortal, str(tmp_path))
    assert done.returncode == 0, done.stderr
    run = reader.read(folder(request).record)
    assert len(run.resumed) == KILLS
    assert any(line.step > 0 for line in run.resumed)
    assert list(run.losses) == list(range(32))
    assert [page.epoch for page in run.epochs] == [1, 2, 3, 4]
    assert_same(expected_request, request, expected, run)


def test_sigterm_saves_and_ends_all_ranks_and_the_run_goes_on_from_there(undisturbed, tmp_path):
    expected_request, _, expected = undisturbed
    request = request_in(tmp_path)
    with subprocess.Popen([*TORCHRUN, *TRAIN, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: checkpoint.files(folder(request).checkpoints))
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert said.count("fngd: stopped; the same command with --resume") == 1
    assert reader.read(folder(request).record).end.reason == "stopped"
    done = torchrun(*TRAIN, "--out", str(tmp_path), "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(expected_request, request, expected, reader.read(folder(request).record))


@pytest.fixture
def attempt(monkeypatch):
    """Let this process be torchrun's only worker, in some attempt of some job."""

    def set_attempt(number, job="a"):
        names = {"RUN_ID": job, "RESTART_COUNT": number, "MAX_RESTARTS": 3}
        for name, value in {f"TORCHELASTIC_{key}": value for key, value in names.items()}.items():
            monkeypatch.setenv(name, str(value))
        for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1}.items():
            monkeypatch.setenv(name, str(value))

    return set_attempt


def test_a_restart_resumes_its_own_jobs_run_and_no_other(request_for, train, attempt):
    request = request_for("sgd-m")
    attempt(0)
    first = train(request)
    attempt(1)
    assert train(request).end == first.end
    attempt(1, job="b")
    with pytest.raises(InputError, match="holds a run already: pass --resume"):
        train(request)
    attempt(1, job="none")
    with pytest.raises(InputError, match="holds a run already: pass --resume"):
        train(request)


def test_a_run_that_has_diverged_is_not_tried_again_by_a_restart(request_for, train, attempt, monkeypatch):
    monkeypatch.setattr("fngd_bench.train.loop.MOST_UNLUCKY", 0)
    request = request_for("sgd-m")
    attempt(0)
    assert train(request).end.reason == "diverged"
    content = folder(request).record.read_bytes()
    attempt(1)
    train(request)
    assert folder(request).record.read_bytes() == content


def test_commands_that_start_processes_refuse_to_be_ranks(request_for, attempt, monkeypatch):
    from fngd_bench.train.compare import run_all

    attempt(0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="torchrun has started 2: run it without torchrun"):
        run_all([replace(request_for("sgd-m"))], lambda number, progress: None)
