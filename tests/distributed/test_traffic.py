"""What goes through the process group: exactly what SGD sends, and once, at the switch, the coefficients."""

import time
from collections import Counter

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
    """For each step, every collective operation with the shapes it was given, as the backend itself records them."""
    model = DistributedDataParallel(network(), **options)
    optimizer = optimizer_of(method, model)
    steps = []
    for step in range(STEPS):
        x, y = batch(step, rank)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            time.sleep(0.02)  # the backend's threads end their records after their work is said to be done
        operations = [event for event in profiler.events() if event.name.startswith("gloo:")]
        steps.append(Counter((event.name, str(event.input_shapes)) for event in operations))
    return steps


@pytest.mark.parametrize("options", [{}, {"static_graph": True}], ids=["usual", "static graph"])
def test_a_step_sends_what_a_step_of_sgd_sends_apart_from_the_switch(processes, options):
    """How many operations of which kind and size; the backend runs them at the same time, in no certain order."""
    everyone = zip(processes.run(2, sent, "sgd", options), processes.run(2, sent, "fngd", options), strict=True)
    for plain, weighted in everyone:
        more = [step - other for step, other in zip(weighted, plain, strict=True)]
        assert all(any(name == "gloo:all_reduce" for name, _ in step) for step in plain)
        assert all(not other - step for step, other in zip(weighted, plain, strict=True))
        assert [sum(step.values()) for step in more] == [0, 0, 3, 0, 0]
        assert sorted(name for name, _ in more[DERIVE - 1]) == ["gloo:all_gather", "gloo:all_gather", "gloo:all_reduce"]


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
