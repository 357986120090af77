"""Runs become groups and summaries by rules that nobody can bend: nothing is dropped, what differs is said."""

import math
from dataclasses import replace

import pytest
from made_up import ORIGIN, hand_made

from fngd_bench.price.record import Measured, StepRecord, StepSettings
from fngd_bench.price.surroundings import Surroundings
from fngd_bench.report.summary import groups, order
from fngd_bench.report.terminal import group_table


def only(runs, prices=()):
    (group,) = groups(runs, prices)
    return group


def shown(group):
    from rich.console import Console

    console = Console(width=250, record=True, file=None)
    with console.capture() as capture:
        console.print(group_table(group))
    return capture.get()


@pytest.fixture
def price():
    """A record in which sharing costs 1.5 of sgd and twice its memory."""

    def make(batch=64, model="cnn", parameters=1000, date=ORIGIN.date):
        rows = {"sgd": 1.0, "fngd-share": 1.5}
        measured = tuple(
            Measured(method=name, period=1, seconds=(0.1 * ratio,) * 6, peak_bytes=(round(ratio * 2**27),) * 3)
            for name, ratio in rows.items()
        )
        settings = StepSettings(
            model=model,
            classes=10,
            batch=batch,
            image_size=8,
            methods=tuple(rows),
            steps=6,
            warmup=1,
            memory_runs=3,
            seed=0,
        )
        origin = replace(ORIGIN, date=date)
        return StepRecord(
            settings=settings, parameters=parameters, measured=measured, surroundings=Surroundings(), provenance=origin
        )

    return make


def test_runs_are_grouped_by_workload_and_scale_then_by_method():
    runs = [
        hand_made(workload=workload, scale=scale, method=method)
        for workload in ("b", "a")
        for scale in ("smoke", "cpu")
        for method in ("kfac", "fngd", "sgd-m")
    ]
    found = groups(runs)
    assert [group.title for group in found] == ["a · cpu", "a · smoke", "b · cpu", "b · smoke"]
    assert all([s.method for s in group.methods] == ["sgd-m", "fngd", "kfac"] for group in found)


def test_the_reference_comes_first_and_this_projects_methods_next():
    names = ["adamw", "ngd", "kfac", "fngd-constant", "sgd-m", "fngd"]
    assert sorted(names, key=order) == ["sgd-m", "fngd", "fngd-constant", "ngd", "adamw", "kfac"]


def test_metrics_are_means_over_seeds():
    runs = [hand_made((0.99, last), seed=seed) for seed, last in enumerate((0.90, 0.92, 0.94))]
    summary = only(runs).of("sgd-m")
    assert summary.final.mean == pytest.approx(0.92)
    assert summary.final.deviation == pytest.approx(0.02)
    assert (summary.best.mean, summary.best.n) == (pytest.approx(0.99), 3)


def test_a_missed_target_is_infinite_and_never_dropped():
    runs = [hand_made((0.5, 0.91), seed=0), hand_made((0.95, 0.5), seed=1), hand_made((0.1, 0.2), seed=2)]
    summary = only(runs).of("sgd-m")
    assert summary.epochs_to_target.values == (2.0, 1.0, math.inf)
    assert summary.seconds_to_target.values == (pytest.approx(0.4), pytest.approx(0.2), math.inf)
    assert summary.epochs_to_target.median == 2.0


def test_a_workload_without_a_target_has_no_time_to_it():
    summary = only([hand_made(target=None)]).of("sgd-m")
    assert summary.epochs_to_target is None
    assert summary.seconds_to_target is None


def test_runs_that_are_not_over_have_no_final_metric_but_are_counted():
    runs = [
        hand_made((0.9,), seed=0),
        hand_made((0.3,), seed=1, end="diverged"),
        hand_made((0.8,), seed=2, end="stopped"),
        hand_made((0.7,), seed=3, end=None),
    ]
    summary = only(runs).of("sgd-m")
    assert summary.states == {"finished": 1, "diverged": 1, "stopped": 1, "unfinished": 1}
    assert (summary.final.mean, summary.final.n) == (pytest.approx(0.6), 2)
    assert len(summary.epochs_to_target.values) == 4
    assert "60.00 ± 42.43 % (n = 2 < 3), 1 diverged, 1 stopped, 1 unfinished" in shown(only(runs))


def test_a_run_that_diverged_before_its_first_evaluation_is_still_there():
    summary = only([hand_made((), end="diverged")]).of("sgd-m")
    assert (summary.final, summary.best, summary.step, summary.epoch_seconds) == (None, None, None, None)
    assert summary.seconds_to_target.values == (math.inf,)
    assert "–, 1 diverged" in shown(only([hand_made((), end="diverged")]))


def test_time_per_step_is_in_units_of_the_references():
    summary = only([hand_made(step_ms=100), hand_made(method="kfac", step_ms=150)]).of("kfac")
    assert (summary.step.median_ms, summary.step.mean_ms) == (pytest.approx(150), pytest.approx(150))
    assert (summary.step.median_ratio, summary.step.mean_ratio) == (pytest.approx(1.5), pytest.approx(1.5))
    assert summary.epoch_seconds == pytest.approx(0.3)


def test_the_mean_step_keeps_what_the_median_hides():
    run = hand_made(method="kfac")
    rare = replace(run, step_seconds={**dict.fromkeys(range(9), 0.1), 9: 1.1})
    step = only([hand_made(), rare]).of("kfac").step
    assert (step.median_ratio, step.mean_ratio) == (pytest.approx(1.0), pytest.approx(2.0))


def test_without_the_reference_there_is_no_ratio():
    summary = only([hand_made(method="kfac")]).of("kfac")
    assert summary.step.median_ratio is None
    assert summary.step.median_ms == pytest.approx(100)


def test_sections_are_milliseconds_of_a_mean_step():
    breakdown = only([hand_made((0.1, 0.2), sections={"forward": 0.04, "backward": 0.06})]).of("sgd-m").breakdown
    assert breakdown.all_epochs == pytest.approx({"forward": 20.0, "backward": 30.0})
    assert breakdown.first_epoch == breakdown.later_epochs == pytest.approx({"forward": 20.0, "backward": 30.0})
    assert only([hand_made((0.1,))]).of("sgd-m").breakdown.later_epochs == {}


def test_memory_is_a_range_over_runs():
    runs = [hand_made(seed=seed, peak_mib=mib) for seed, mib in enumerate((10, 30, 20))]
    peak = only(runs).of("sgd-m").peak_mib
    assert (peak.median, peak.low, peak.high, peak.n) == (20, 10, 30, 3)


def test_runs_of_one_method_that_differ_are_flagged():
    other = replace(ORIGIN, commit="fedcba9876543210", threads=1)
    runs = [
        hand_made(seed=0),
        hand_made(seed=1, hyperparameters={"lr": 0.2, "momentum": 0.9}),
        hand_made(seed=1, origin=other),
    ]
    assert only(runs).of("sgd-m").flags == (
        "lr: 0.1 and 0.2",
        "momentum: unset and 0.9",
        "commit: 0123456789ab and fedcba987654",
        "threads: 2 and 1",
        "seed 1 counts 2 times",
    )


def test_methods_that_were_not_treated_alike_are_flagged():
    newer = replace(ORIGIN, date="2026-02-02", dirty=True)
    group = only([hand_made(), hand_made(method="kfac", seed=1, target=0.8, origin=newer)])
    assert group.target == 0.8
    assert group.flags == (
        "target: 0.9 and 0.8",
        "uncommitted changes: no and yes",
        "all runs are judged by the newest target, 0.8",
        "seeds: sgd-m 0; kfac 1",
    )
    assert all(summary.flags == () for summary in group.methods)
    assert "Not all runs are alike" in shown(group)


def test_runs_that_are_alike_are_not_flagged():
    runs = [hand_made(method=method, seed=seed) for method in ("sgd-m", "fngd") for seed in range(3)]
    group = only(runs)
    assert group.flags == ()
    assert all(summary.flags == () for summary in group.methods)
    assert "Not all runs are alike" not in shown(group)


def test_an_interleaved_price_replaces_what_the_runs_say(price):
    runs = [hand_made(), hand_made(method="fngd", step_ms=300), hand_made(method="kfac", step_ms=200)]
    text = shown(only(runs, [price()]))
    assert "1.500 [1.500, 1.500]" in text
    assert "192 MiB *" in text
    assert "≈ 2.00 · 2.00" in text


@pytest.mark.parametrize("unlike", [{"batch": 32}, {"model": "resnet32"}, {"parameters": 1200}])
def test_the_price_of_another_model_is_not_taken(price, unlike):
    assert only([hand_made()], [price(**unlike)]).record is None


def test_the_newest_price_is_taken(price):
    old, new = price(date="2026-01-01"), price(date="2026-02-01", parameters=1050)
    assert only([hand_made()], [new, old]).record is new


def test_the_terminal_shows_a_row_for_each_method():
    runs = [
        hand_made((0.5, last), method=method, seed=seed)
        for method in ("sgd-m", "[red]")
        for seed in range(3)
        for last in (0.9 + 0.01 * seed,)
    ]
    text = shown(only(runs))
    assert "digits-cnn · smoke, target 90.00 % accuracy" in text
    assert text.count("91.00 ± 1.00 % (n = 3)") == 2
    assert text.count("0.4 s (3 of 3)") == 2
    assert text.count("≈ 1.00 · 1.00") == 1
    assert "[red]" in text
