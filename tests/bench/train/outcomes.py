"""What a run has come to, and whether two runs have come to the same."""

import time

import torch

from fngd_bench.train import checkpoint
from fngd_bench.train.run import folder


def weights(request):
    return checkpoint.latest(folder(request).checkpoints)["model"]


def assert_same(left, right, left_run, right_run):
    assert left_run.losses == right_run.losses
    pages = [
        [(page.epoch, page.step, page.lr, page.train_loss, page.test_loss, page.metric) for page in run.epochs]
        for run in (left_run, right_run)
    ]
    assert pages[0] == pages[1]
    assert [page.layers for page in left_run.coefficients] == [page.layers for page in right_run.coefficients]
    assert all(torch.equal(a, b) for a, b in zip(weights(left).values(), weights(right).values(), strict=True))


def wait_for(condition, seconds=60):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)
