"""What stands at the top of the page follows from the records, whichever way they turn out."""

from dataclasses import replace

import pytest
from made_up import hand_made, layer

from fngd_bench.report.findings import coefficient_sentence, control, control_sentence, evidence, findings
from fngd_bench.report.summary import groups
from fngd_bench.runs.events import Coefficients


def pair(shared, constant, **settings):
    """A group of both methods with these final metrics, by seed."""
    runs = [
        hand_made((metric,), method=method, seed=seed, **settings)
        for method, metrics in (("fngd", shared), ("fngd-constant", constant))
        for seed, metric in enumerate(metrics)
    ]
    (group,) = groups(runs)
    return group


def with_coefficients(*events):
    run = replace(hand_made(method="fngd"), coefficients=events)
    (group,) = groups([run])
    return group


def test_the_control_is_paired_by_seed():
    found = control(pair((0.90, 0.80, 0.70), (0.89, 0.79, 0.69)))
    assert (found.mean, found.low, found.high) == pytest.approx((0.01, 0.01, 0.01))


@pytest.mark.parametrize(
    ("shared", "constant", "verdict"),
    [
        ((0.90, 0.91, 0.92), (0.80, 0.812, 0.818), "sharing helped"),
        ((0.80, 0.812, 0.818), (0.90, 0.91, 0.92), "sharing hurt"),
        ((0.90, 0.91, 0.92), (0.91, 0.90, 0.92), "no difference is shown"),
    ],
)
def test_the_verdict_goes_with_the_interval(shared, constant, verdict):
    assert verdict in control_sentence(pair(shared, constant))


def test_the_control_is_told_with_its_numbers():
    text = control_sentence(pair((0.92, 0.94), (0.90, 0.90)))
    assert "+3.00 percentage points, 95 % interval −9.71 to +15.71, paired by seed (n = 2 < 3)" in text
    assert "+0.03 points of BLEU" in control_sentence(pair((0.92, 0.94), (0.90, 0.90), metric="BLEU"))


def test_one_pair_shows_nothing():
    assert "one pair has no interval and shows nothing" in control_sentence(pair((0.92,), (0.90, 0.90)))


def test_without_a_pair_the_control_says_so():
    (group,) = groups([hand_made(method="fngd"), hand_made(method="fngd-constant", end="stopped")])
    assert control(group) is None
    assert "not known here" in control_sentence(group)


def test_a_group_without_the_method_has_no_findings():
    (group,) = groups([hand_made()])
    assert findings(group) == ()


def test_the_evidence_is_that_of_the_last_event():
    early = Coefficients(epoch=1, layers={"a": layer(coefficient_mean=0.1)})
    late = Coefficients(epoch=2, layers={"a": layer(coefficient_mean=0.8), "b": layer(coefficient_spread=0.3)})
    found = evidence(with_coefficients(early, late))
    assert (found.mean_low, found.mean_high, found.layers, found.runs) == (0.8, 0.9, 2, 1)
    assert (found.inside, found.shared, found.batches) == pytest.approx((0.2, 0.01, 100))
    assert found.chance == pytest.approx(0.02)


@pytest.mark.parametrize(("spread", "verdict"), [(0.0149, "No more than chance"), (0.0151, "More than chance")])
def test_the_coefficients_are_held_against_chance(spread, verdict):
    group = with_coefficients(Coefficients(epoch=1, layers={"a": layer(shared_spread=spread)}))
    text = coefficient_sentence(group)
    assert verdict in text
    assert "inside a batch c varies by 0.1000" in text
    assert "leave 0.0100 after 100 batches" in text


def test_coefficients_that_were_not_recorded_are_not_claimed():
    assert "not measured" in coefficient_sentence(with_coefficients())
    assert "not measured" in coefficient_sentence(
        with_coefficients(Coefficients(epoch=1, layers={"a": layer(batches=0)}))
    )
