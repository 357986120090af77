"""The loop: what it does when things go wrong, and what it writes down."""

import json

import pytest
import torch

from fngd_bench import workloads
from fngd_bench.errors import InputError
from fngd_bench.problems import Classification
from fngd_bench.runs import reader
from fngd_bench.train.loop import MOST_UNLUCKY
from fngd_bench.train.run import choose, folder, run


def test_a_step_without_a_finite_loss_is_skipped_and_said_so(request_for, train, monkeypatch):
    plain = Classification.loss
    calls = []

    def sometimes(self, model, batch):
        calls.append(1)
        return plain(self, model, batch) * (float("nan") if len(calls) == 3 else 1.0)

    monkeypatch.setattr(Classification, "loss", sometimes)
    run = train(request_for("sgd-m"))
    assert run.end.reason == "finished"
    assert [(page.step, page.reason) for page in run.skipped] == [(2, "loss nan")]


def test_ten_steps_in_a_row_without_a_finite_loss_end_the_run(request_for, train, monkeypatch):
    monkeypatch.setattr(Classification, "loss", lambda self, model, batch: model(*batch.inputs).sum() * float("inf"))
    run = train(request_for("sgd-m"))
    assert run.end.reason == "diverged"
    assert run.end.step == MOST_UNLUCKY == len(run.skipped)


def test_a_skipped_step_leaves_the_weights_alone(request_for, monkeypatch):
    request = request_for("sgd-m")
    start = workloads.build(choose(request).size, batch=32, seed=0).model.state_dict()
    monkeypatch.setattr(Classification, "loss", lambda self, model, batch: model(*batch.inputs).sum() * float("nan"))
    monkeypatch.setattr("fngd_bench.train.loop.MOST_UNLUCKY", 100)
    run(request, lambda progress: None)
    saved = torch.load(sorted(folder(request).checkpoints.iterdir())[-1], weights_only=True)["model"]
    for name, tensor in saved.items():
        assert "running" in name or "num_batches" in name or torch.equal(tensor, start[name])


def test_fngd_leaves_coefficients_and_gram_matrices_in_the_record(request_for, train):
    run = train(request_for("fngd"))
    assert [page.epoch for page in run.coefficients] == [1, 2]
    assert all(0 < layer.coefficient_mean <= 1 for layer in run.coefficients[0].layers.values())
    assert run.coefficients[0].layers == run.coefficients[1].layers
    assert [page.epoch for page in run.grams] == [1, 2]
    for matrix in run.grams[0].layers.values():
        assert len(matrix) == len(matrix[0]) == 32
        assert torch.allclose(torch.tensor(matrix), torch.tensor(matrix).T)


def test_looking_at_gram_matrices_does_not_change_the_run(request_for, train, monkeypatch):
    looked = train(request_for("fngd", out="looked"))
    monkeypatch.setattr("fngd_bench.train.loop.grams", lambda training: {})
    assert train(request_for("fngd", out="blind")).losses == looked.losses


@pytest.mark.parametrize("method", ["kfac", "eva"])
def test_preconditioning_is_timed_apart_from_the_update(request_for, train, method):
    sections = train(request_for(method)).epochs[0].sections
    assert sections["precondition"] > 0
    assert sections["update"] > 0


def test_the_header_says_what_was_run_and_on_what(request_for, train):
    run = train(request_for("sgd-m", hyperparameters={"lr": 0.07}, seed=5))
    assert run.settings.hyperparameters["lr"] == 0.07
    assert run.settings.seed == 5
    assert run.header.parameters > 0
    assert run.provenance.torch == torch.__version__
    first = json.loads(run.path.read_text(encoding="utf-8").splitlines()[0])
    assert first["event"] == "header"


def test_the_callers_random_numbers_are_not_touched(request_for, train):
    before = torch.get_rng_state()
    train(request_for("sgd-m"))
    assert torch.equal(torch.get_rng_state(), before)


def test_progress_tells_every_step(request_for):
    seen = []
    run(request_for("sgd-m"), seen.append)
    assert [progress.step for progress in seen] == list(range(1, 17))
    assert {progress.total for progress in seen} == {16}
    assert seen[0].metric is None
    assert 0 <= seen[-1].metric <= 1
    assert seen[-1].epoch == 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workload": "mnist"}, r"workload='mnist' is not known"),
        ({"scale": "big"}, r"scale='big' of digits-cnn is not known"),
        ({"method": "sgd"}, r"'sgd'"),
        ({"epochs": 0}, r"epochs=0 must be at least 1"),
        ({"batch": 1}, r"batch=1 must be at least 2"),
        ({"seed": -1}, r"seed=-1 must be at least 0"),
        ({"hyperparameters": {"lr": -1.0}}, r"lr"),
        ({"hyperparameters": {"gain": 1.0}}, r"gain"),
        ({"device": "abacus"}, r"device='abacus' cannot be used"),
    ],
    ids=str,
)
def test_wrong_requests_are_refused_by_name(request_for, settings, message):
    request = request_for(**{"method": "sgd-m", **settings})
    with pytest.raises(InputError, match=message):
        run(request, lambda progress: None)
    assert not folder(request).record.exists() or not reader.read(folder(request).record).losses


def test_tensorboard_gets_the_numbers_of_the_record(request_for, train, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = train(request_for("fngd", tensorboard=tmp_path / "board"))
    events = EventAccumulator(str(tmp_path / "board" / "digits-cnn-smoke-fngd-seed0"))
    events.Reload()
    losses = [scalar.value for scalar in events.Scalars("train/loss")]
    assert losses == pytest.approx(list(record.losses.values()), rel=1e-6)
    assert [scalar.value for scalar in events.Scalars("epoch/metric")] == pytest.approx(
        [page.metric for page in record.epochs]
    )
