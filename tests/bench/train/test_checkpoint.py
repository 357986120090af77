"""Checkpoints are whole or not there."""

import pytest
import torch

from fngd_bench.errors import InputError
from fngd_bench.train import checkpoint


def test_the_newest_checkpoint_comes_back_and_two_are_kept(tmp_path):
    for step in (3, 5, 20):
        checkpoint.save(tmp_path / "c", step, {"step": step, "weights": torch.full((2,), float(step))})
    assert [path.name for path in checkpoint.files(tmp_path / "c")] == ["step-000000005.pt", "step-000000020.pt"]
    state = checkpoint.latest(tmp_path / "c")
    assert state["step"] == 20
    assert torch.equal(state["weights"], torch.full((2,), 20.0))


def test_without_a_checkpoint_there_is_none(tmp_path):
    assert checkpoint.latest(tmp_path / "nowhere") is None


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path):
    checkpoint.save(tmp_path, 1, {"step": 1})
    newest = checkpoint.save(tmp_path, 2, {"step": 2})
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.warns(UserWarning, match=r"step-000000002.pt is damaged"):
        assert checkpoint.latest(tmp_path) == {"step": 1}


def test_damaged_checkpoints_alone_are_an_error_not_a_fresh_start(tmp_path):
    checkpoint.save(tmp_path, 1, {"step": 1}).write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(InputError, match="none of the 1 checkpoints"):
        checkpoint.latest(tmp_path)


def test_a_failed_write_leaves_the_last_checkpoint_and_no_half_file(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, {"step": 1})

    def full(path, content):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write", full)
    with pytest.raises(InputError, match=r"No space left on device\. The last one, step-000000001.pt, is intact"):
        checkpoint.save(tmp_path, 2, {"step": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.pt"]
    assert checkpoint.latest(tmp_path) == {"step": 1}


def test_a_checkpoint_that_holds_code_is_not_loaded(tmp_path):
    torch.save({"step": Evil()}, tmp_path / "step-000000001.pt")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(InputError):
        checkpoint.latest(tmp_path)
    assert not Evil.ran


class Evil:
    ran = False

    def __reduce__(self):
        return run_code, ()


def run_code():
    Evil.ran = True
