"""A run that was interrupted ends as if it had not been: the same losses, the same tests, the same weights."""

import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from outcomes import assert_same, wait_for

from fngd_bench.errors import InputError
from fngd_bench.runs import reader
from fngd_bench.train import checkpoint
from fngd_bench.train.compare import process_context
from fngd_bench.train.loop import Pace
from fngd_bench.train.run import folder, run

KILLS = 10
NEVER = Pace(checkpoint_seconds=1e9, record_seconds=1e9)
ALWAYS = Pace(checkpoint_seconds=0.0, record_seconds=0.0)


class CrashError(Exception):
    pass


def interrupted_after(request, steps):
    """Do a run and let it die after some steps, as a crash would: nothing is saved on the way out."""

    def report(progress):
        if progress.step == steps:
            raise CrashError

    with pytest.raises(CrashError):
        run(request, report)


@pytest.mark.parametrize("steps", [3, 8, 11], ids=["while deriving", "at the switch", "while sharing"])
@pytest.mark.parametrize("method", ["fngd", "kfac", "adamw"])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(request_for, train, method, steps):
    whole = request_for(method, out="whole")
    broken = request_for(method, out="broken", pace=ALWAYS)
    expected = train(whole)
    assert expected.settings.steps_per_epoch == 8
    interrupted_after(broken, steps)
    resumed = train(replace(broken, resume=True))
    assert resumed.end.reason == "finished"
    assert len(resumed.resumed) == 1
    assert_same(whole, broken, expected, resumed)


def test_dropout_goes_on_with_the_same_random_numbers(request_for, train):
    whole = request_for("adamw", out="whole", workload="numbers-transformer")
    broken = request_for("adamw", out="broken", workload="numbers-transformer", pace=ALWAYS)
    expected = train(whole)
    interrupted_after(broken, 3)
    assert_same(whole, broken, expected, train(replace(broken, resume=True)))


def test_killed_at_random_moments_a_run_still_ends_the_same(request_for, train):
    whole = request_for("fngd", out="whole", epochs=12)
    broken = replace(whole, out=whole.out.parent / "broken", resume=True, pace=Pace(checkpoint_seconds=0.03))
    expected = train(whole)
    randomly = random.Random(0)
    for _ in range(KILLS):
        kill_after(broken, randomly.randint(1, 10), randomly.uniform(0, 0.03))
    resumed = train(broken)
    assert len(resumed.resumed) == KILLS
    assert any(line.step > 0 for line in resumed.resumed)
    assert_same(whole, broken, expected, resumed)


def kill_after(request, steps, seconds):
    """Start or resume a run in a process of its own, and kill it some steps and a moment later."""
    context = process_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=tell_steps, args=(request, sender))
    process.start()
    sender.close()
    for _ in range(steps):
        receiver.recv()
    time.sleep(seconds)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def tell_steps(request, sender):
    torch.set_num_threads(1)
    run(request, lambda progress: sender.send(progress.step))


def test_sigterm_saves_and_exits_and_the_run_goes_on_from_there(request_for, train, tmp_path):
    whole = request_for("fngd", out="whole", epochs=6)
    broken = request_for("fngd", out="broken", epochs=6)
    expected = train(whole)
    command = [sys.executable, "-m", "fngd_bench.cli", "train", "digits-cnn", "fngd", "--scale", "smoke"]
    command += ["--epochs", "6", "--out", str(broken.out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: checkpoint.files(folder(broken).checkpoints))
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in said
    assert reader.read(folder(broken).record).end.reason == "stopped"
    assert_same(whole, broken, expected, train(replace(broken, resume=True)))


def test_a_full_disk_ends_the_run_in_one_line_with_the_last_checkpoint_intact(request_for, train, tmp_path):
    resource = pytest.importorskip("resource")
    broken = request_for("sgd-m", out="broken", epochs=2)

    def small_files():
        limit = 64 << 10  # the record fits, a checkpoint of the network does not
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-m", "fngd_bench.cli", "train", "digits-cnn", "sgd-m", "--scale", "smoke"]
    command += ["--out", str(broken.out)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=small_files)
    assert ended.returncode == 2
    line = ended.stderr.strip().splitlines()[-1]
    assert line.startswith("fngd: cannot write the checkpoint")
    assert "File too large" in line
    assert "Traceback" not in ended.stderr
    assert checkpoint.files(folder(broken).checkpoints) == []
    resumed = train(replace(broken, resume=True))
    assert resumed.end.reason == "finished"


def test_a_folder_that_cannot_be_written_is_refused_before_any_training(request_for, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"cannot write in .*--out"):
        run(request_for("sgd-m", out="file/runs"), lambda progress: None)


def test_a_second_run_in_the_same_folder_is_refused(request_for, train):
    request = request_for("sgd-m")
    train(request)
    with pytest.raises(InputError, match=r"holds a run already: pass --resume"):
        train(request)


def test_resuming_with_other_settings_is_refused_by_name(request_for, train):
    request = request_for("sgd-m")
    train(request)
    with pytest.raises(InputError, match=r"started with epochs=2, not 3"):
        train(replace(request, epochs=3, resume=True))


def test_a_finished_run_is_left_as_it_is(request_for, train):
    request = request_for("sgd-m")
    before = train(request)
    content = folder(request).record.read_bytes()
    assert train(replace(request, resume=True)).end == before.end
    assert folder(request).record.read_bytes() == content


def test_resuming_where_nothing_was_started_starts(request_for, train):
    assert train(request_for("sgd-m", resume=True)).end.reason == "finished"
