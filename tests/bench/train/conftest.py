"""Runs small enough to be done many times: digits, a few steps an epoch."""

from pathlib import Path

import pytest
import torch

from fngd_bench.runs import reader
from fngd_bench.train.loop import Pace
from fngd_bench.train.run import Request, run


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Tensors this small are not worth a second thread, least of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    torch.set_num_threads(before)


@pytest.fixture
def request_for(tmp_path):
    """A request for a quick run of a method, in a folder of the test's own."""

    def make(method="fngd", *, out="runs", workload="digits-cnn", scale="smoke", **settings):
        pace = settings.pop("pace", Pace(checkpoint_seconds=1e9, record_seconds=1e9))
        return Request(workload=workload, method=method, scale=scale, out=tmp_path / out, pace=pace, **settings)

    return make


@pytest.fixture
def train():
    """Do a request's run and read its record."""

    def do(request):
        folder, _ = run(request, lambda progress: None)
        return reader.read(Path(folder.record))

    return do
