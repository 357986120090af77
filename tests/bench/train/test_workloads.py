"""Every workload with every method, at the smallest scale: they run, and leave a whole record."""

import math

import pytest

from fngd_bench import workloads
from fngd_bench.errors import InputError
from fngd_bench.optimizers import METHODS
from fngd_bench.train.schedule import SCHEDULES
from fngd_bench.workloads import SCALES, WORKLOADS

BEYOND_THE_PAPER = {"cifar10-noisy-resnet32", "cifar10-longtail-resnet32"}
"""Problems for sample weights, at two scales."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_trains_with_every_method(request_for, train, workload, method):
    run = train(request_for(method, workload=workload))
    assert run.end.reason == "finished"
    assert len(run.epochs) == run.settings.epochs
    assert len(run.losses) == run.settings.epochs * run.settings.steps_per_epoch
    assert all(math.isfinite(loss) for loss in run.losses.values())
    assert {"data", "forward", "backward", "update"} <= set(run.epochs[0].sections)
    assert sum(run.step_seconds.values()) == pytest.approx(run.epochs[-1].seconds)
    assert run.end.peak_bytes > 0


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_has_every_scale_with_sane_numbers(name):
    row = WORKLOADS[name]
    assert set(row.scales) == set(SCALES) - ({"paper"} if name in BEYOND_THE_PAPER else set())
    assert row.schedule in SCHEDULES
    assert row.family in {"images", "translation"}
    for size in row.scales.values():
        assert size.batch >= 2
        assert size.epochs >= 2
        assert set(size.longer) <= set(METHODS)


def test_the_paper_scale_is_the_papers():
    resnet = WORKLOADS["cifar10-resnet32"].scales["paper"]
    assert (resnet.batch, resnet.epochs, dict(resnet.longer), resnet.target) == (128, 100, {"sgd-m": 200}, 0.925)
    imagenet = WORKLOADS["imagenet-resnet50"].scales["paper"]
    assert (imagenet.epochs, dict(imagenet.longer), imagenet.target) == (55, {"sgd-m": 90}, 0.75)
    text = WORKLOADS["multi30k-transformer"].scales["paper"]
    assert (text.batch, text.epochs) == (64, 100)


def test_unknown_names_are_refused_with_the_list():
    with pytest.raises(InputError, match=r"workload='mnist' is not known: choose one of digits-cnn"):
        workloads.workload("mnist")
    with pytest.raises(InputError, match=r"scale='big' of digits-cnn is not known: choose one of smoke, cpu, paper"):
        workloads.scale(WORKLOADS["digits-cnn"], "big")
    with pytest.raises(InputError, match=r"choose one of smoke, cpu$"):
        workloads.scale(WORKLOADS["cifar10-noisy-resnet32"], "paper")
