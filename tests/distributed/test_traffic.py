"""What goes through the process group: exactly what SGD sends, and once, at the switch, the coefficients."""

import pytest
import torch
from oracle import RATE, batch, network
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import fngd

STEPS, DERIVE = 5, 3


def optimizer_of(method, model):
    if method == "sgd":
        return torch.optim.SGD(model.parameters(), lr=RATE)
    return fngd.FNGD(model, lr=RATE, derive_steps=DERIVE)


def sent(rank, method, options):
    """For each step, every collective operation with the shapes it was given: the backend's own records."""
    model = DistributedDataParallel(network(), **options)
    optimizer = optimizer_of(method, model)
    steps = []
    for step in range(STEPS):
        x, y = batch(step, rank)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        steps.append([(e.name, e.input_shapes) for e in profiler.events() if e.name.startswith("gloo:")])
    return steps


@pytest.mark.parametrize("options", [{}, {"static_graph": True}], ids=["usual", "static graph"])
def test_a_step_sends_what_a_step_of_sgd_sends_apart_from_the_switch(processes, options):
    for plain, weighted in zip(
        processes.run(2, sent, "sgd", options), processes.run(2, sent, "fngd", options), strict=True
    ):
        switch = weighted[DERIVE - 1][len(plain[DERIVE - 1]) :]
        assert all("all_reduce" in [name.removeprefix("gloo:") for name, _ in step] for step in plain)
        assert [*weighted[: DERIVE - 1], *weighted[DERIVE:]] == [*plain[: DERIVE - 1], *plain[DERIVE:]]
        assert [name for name, _ in switch] == ["gloo:all_gather", "gloo:all_gather", "gloo:all_reduce"]


def overlap(rank, method):
    """For each step, how many buckets were sent before the lowest layer's gradient was there."""
    model = network()
    ddp = DistributedDataParallel(model, bucket_cap_mb=1e-6)
    seen = []

    def hook(_, bucket):
        seen.append("bucket")
        future = torch.distributed.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    ddp.register_comm_hook(None, hook)
    for parameter in model.conv.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: seen.append("conv"))
    optimizer = optimizer_of(method, ddp)
    before = []
    for step in range(STEPS):
        seen.clear()
        x, y = batch(step, rank)
        cross_entropy(ddp(x), y).backward()
        optimizer.step()
        before.append(seen.index("conv"))
    return before


def test_gradients_are_sent_while_the_layers_below_are_still_at_work(processes):
    """The upper four parameters are two layers' weights and biases; the first step is in one bucket for all."""
    weighted, plain = processes.run(2, overlap, "fngd"), processes.run(2, overlap, "sgd")
    assert weighted == plain == [[0, 4, 4, 4, 4]] * 2
