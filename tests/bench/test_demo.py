"""The demo trains both optimizers on the same things and says what it saw."""

import pytest
import torch

from fngd import LayerStatistics
from fngd_bench import console, demo_report
from fngd_bench.demo import EpochResult, Outcome, Plan, digits, run
from fngd_bench.errors import InputError


@pytest.fixture(scope="module")
def outcome():
    return run(Plan(epochs=2), lambda _: None)


def test_both_learn_and_none_learns_from_the_other(outcome):
    for runs in (outcome.sgd, outcome.natural):
        assert runs[1].loss < runs[0].loss
        assert runs[1].accuracy > 0.5
        assert all(len(page.step_seconds) == 22 for page in runs)
    assert outcome.sgd[1].loss != outcome.natural[1].loss


def test_the_same_seed_gives_the_same_run(outcome):
    again = run(Plan(epochs=2), lambda _: None)
    assert [(page.loss, page.accuracy) for page in again.sgd] == [(page.loss, page.accuracy) for page in outcome.sgd]


def test_the_split_is_whole_disjoint_and_standardised():
    data = digits(seed=0)
    assert (len(data.train_classes), len(data.test_classes)) == (1437, 360)
    assert data.train_images.std().item() == pytest.approx(1.0, rel=1e-4)  # float32
    assert data.train_images.shape == (1437, 1, 8, 8)
    both = torch.cat([data.train_classes, data.test_classes])
    assert torch.equal(both.bincount(), torch.cat([*digits(seed=1)[1::2]]).bincount())


def test_the_report_shows_both_side_by_side(outcome, capsys):
    console.show(demo_report.table(Plan(epochs=2), outcome))
    shown = capsys.readouterr().out
    assert f"{outcome.sgd[1].loss:.4f}" in shown
    assert f"{outcome.natural[1].loss:.4f}" in shown
    assert "derive" in shown
    assert "share" in shown
    assert "…" not in shown


def test_the_report_says_the_price(outcome):
    price, coefficients = demo_report.sentences(outcome)
    assert "× SGD's" in price
    assert "4 layers" in coefficients


@pytest.mark.parametrize(("shared", "said"), [(0.01, "no more than chance"), (0.05, "more than chance: the positions")])
def test_the_sentence_on_coefficients_follows_the_numbers(shared, said):
    layer = LayerStatistics(
        coefficient_mean=0.95,
        coefficient_spread=0.05,
        shared_spread=shared,
        damping=1.0,
        effective_rank=2.0,
        cosine=0.99,
        batches=25,
        skipped=0,
    )
    page = EpochResult(1.0, 0.5, (1.0,))
    sentence = demo_report.coefficient_sentence(Outcome((page,), (page,), {"layer": layer}))
    assert said in sentence
    assert "0.0100 by chance" in sentence


@pytest.mark.parametrize("wrong", [{"epochs": 1}, {"seed": -1}])
def test_a_bad_plan_is_refused(wrong):
    with pytest.raises(InputError, match="must be"):
        Plan(**wrong)
