"""Many runs, each in a process of its own; and tuning."""

from dataclasses import replace

import pytest

from fngd_bench.errors import InputError
from fngd_bench.optimizers import Range
from fngd_bench.runs import reader
from fngd_bench.train import tune as tuning
from fngd_bench.train.compare import run_all
from fngd_bench.train.run import folder
from fngd_bench.train.tune import Tuning, factors, grid, tune


def test_runs_in_processes_of_their_own_equal_runs_at_home(request_for, train):
    away = [request_for(method, out="away") for method in ("sgd-m", "fngd")]
    seen = []
    outcomes = run_all(away, lambda number, progress: seen.append((number, progress.step)))
    assert [outcome.end.reason for outcome in outcomes] == ["finished", "finished"]
    assert seen[-1] == (1, 16)
    for request in away:
        home = train(replace(request, out=request.out.parent / "home"))
        assert reader.read(folder(request).record).losses == home.losses


def test_input_that_a_run_refuses_ends_the_whole(request_for, tmp_path):
    request = request_for("sgd-m", workload="cifar10-resnet32", scale="cpu", data=tmp_path)
    with pytest.raises(InputError, match="fngd data fetch cifar10"):
        run_all([request], lambda number, progress: None)


def test_factors_are_balanced_and_multiply_to_the_number():
    for number in range(1, 60):
        for count in (1, 2, 3):
            found = factors(number, count)
            product = 1
            for factor in found:
                product *= factor
            assert product == number
            assert len(found) == count
    assert factors(12, 2) == [4, 3]
    assert factors(12, 3) == [3, 2, 2]
    assert factors(7, 2) == [7, 1]


def test_a_grid_has_as_many_points_as_trials_whatever_is_varied():
    space = {"lr": Range(low=0.01, high=1.0), "weight_decay": Range(low=0.0, high=0.1, log=False)}
    points = grid(space, 6)
    assert len({tuple(point.values()) for point in points}) == 6
    assert sorted({round(point["lr"], 6) for point in points}) == [0.01, 0.1, 1.0]
    assert sorted({point["weight_decay"] for point in points}) == [0.0, 0.1]
    assert grid(space, 1) == [{"lr": pytest.approx(0.1), "weight_decay": 0.05}]


@pytest.mark.parametrize("sampler", ["grid", "tpe"])
def test_tuning_does_its_trials_once_and_goes_on_where_it_was(request_for, sampler):
    wanted = Tuning(request=request_for("sgd-m", out="tune"), trials=2, sampler=sampler)
    numbers = []
    best = tune(wanted, lambda number, progress: numbers.append(number))
    assert best.trials == 2
    assert set(numbers) == {0, 1}
    assert set(best.hyperparameters) == set(wanted.space)
    assert reader.read(best.record).epochs[-1].metric == best.metric
    numbers.clear()
    again = tune(wanted, lambda number, progress: numbers.append(number))
    assert again == best
    assert numbers == []
    more = tune(replace(wanted, trials=3), lambda number, progress: numbers.append(number))
    assert more.trials == (3 if sampler == "tpe" else len(set(numbers)) + 2)


def test_a_stopped_trial_goes_back_into_the_queue(request_for):
    wanted = Tuning(request=request_for("sgd-m", out="tune"), trials=1)

    def stop(number, progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(wanted, stop)
    queue = tuning._study(wanted).get_trials()
    assert [trial.state.name for trial in queue] == ["FAIL", "WAITING"]
    best = tune(wanted, lambda number, progress: None)
    assert best.trials == 1
    assert best.hyperparameters == pytest.approx(queue[0].params)


def test_a_trial_whose_process_is_gone_goes_back_into_the_queue(request_for, monkeypatch):
    wanted = Tuning(request=request_for("sgd-m", out="tune"), trials=1)
    lost = tuning._next(tuning._study(wanted), wanted)
    assert tuning._next(tuning._study(wanted), wanted) is None
    monkeypatch.setattr(tuning, "STALE_SECONDS", -1.0)
    found = tuning._next(tuning._study(wanted), wanted)
    assert found.params == pytest.approx(lost.params)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"trials": 0}, "trials=0 must be"), ({"trials": 2, "sampler": "luck"}, "sampler='luck' is not known")],
)
def test_wrong_tunings_are_refused(request_for, settings, message):
    with pytest.raises(InputError, match=message):
        Tuning(request=request_for("sgd-m"), **settings)
