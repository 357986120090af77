"""Thousands of steps, of attachments and of shapes, and several threads: nothing grows, nothing mixes.

Nothing is timed. A step that took longer would do more: Python's calls inside of it are counted. Memory is what malloc
and Python's own allocator have handed out and not got back.
"""

import ctypes
import gc
import sys
import threading
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import optimizer as torch_optimizer

import fngd
from fngd import scratch
from fngd.layers import attach, base

POLICIES = [
    fngd.Shared(100),
    fngd.Constant(100),
    fngd.Refreshed(3, 0.9),
    fngd.Fresh(),
    fngd.FromHead(),
    fngd.FromHead(rhs="residual"),
]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=str)
PYTHON_BLOCKS, NATIVE_BYTES = 200, 1 << 15
"""What may come and go in caches of Python's and torch's own; one block and 64 bytes a step would be more."""


class Info(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def native_bytes():
    """Bytes that malloc has handed out; 0 where the C library does not say."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return 0
    ask.restype = Info
    info = ask()
    return info.uordblks + info.hblkhd


def held():
    """Tensors that Python can see, Python's memory blocks, malloc's bytes."""
    gc.collect()
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    return tensors, sys.getallocatedblocks(), native_bytes()


def check_growth(*snapshots):
    """A leak grows in every round; a cache that is filled, once."""
    rounds = [[b - a for a, b in zip(*pair, strict=True)] for pair in pairwise(snapshots)]
    tensors, blocks, native = (min(column) for column in zip(*rounds, strict=True))
    assert tensors <= 0
    assert blocks <= PYTHON_BLOCKS
    assert native <= NATIVE_BYTES


def calls(function):
    """How many calls, of Python functions and of C functions, it makes."""
    count = 0

    def watch(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()
    sys.setprofile(watch)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def batch(seed, size=4):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 1, 4, 4, generator=generator), torch.randint(3, (size,), generator=generator)


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize("policy", [fngd.Shared(100), fngd.Refreshed(2, 0.9), fngd.FromHead()], ids=str)
def test_two_thousand_steps_grow_nothing(policy):
    """Step 150 and step 2,000 make the same calls, and memory stays what it is."""
    model, data = network(), [batch(seed) for seed in range(7)]
    optimizer = fngd.FNGD(model, lr=0.01, momentum=0.9, policy=policy)
    work, snapshots = {}, []
    for number in range(2001):
        if number in (150, 2000):
            work[number] = calls(lambda: step(model, optimizer, *data[0]))
        else:
            step(model, optimizer, *data[number % len(data)])
        if number in (800, 1400, 2000):
            snapshots.append(held())
    check_growth(*snapshots)
    assert work[150] == work[2000]
    assert optimizer.preconditioner.step_count == 2001
    assert all(p.isfinite().all() for p in model.parameters())


class Images(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize("policy", [fngd.Shared(2), fngd.Fresh()], ids=str)
def test_inputs_of_ever_new_shapes_grow_nothing(policy, monkeypatch):
    monkeypatch.setattr(scratch, "MOST_VIEWS", 80)
    torch.manual_seed(0)
    model, y = Images(), torch.tensor([0, 1, 2])
    optimizer, kept = fngd.FNGD(model, lr=0.01, policy=policy), []
    for size in range(200, 3, -1):  # never a larger one, for which all would be made anew
        step(model, optimizer, torch.ones(3, 1, 3, size), y)
        kept.append(len(optimizer.preconditioner._run.scratch.memory.views))
    assert max(kept) <= 80
    assert all(len(layer._operations) <= base.MOST_SHAPES for layer in optimizer.preconditioner.layers)
    assert all(len(layer.sharing._spread) <= base.MOST_SHAPES for layer in optimizer.preconditioner.layers)


def attached_and_detached(model, make, data, times):
    """Every fifth time a step is taken too."""
    for number in range(times):
        natural = make(model)
        if number % 5 == 0:
            rule = natural if isinstance(natural, fngd.FNGD) else torch.optim.SGD(model.parameters(), lr=0.01)
            step(model, rule, *data)
        natural.detach()


MAKERS = {
    "FNGD": lambda model: fngd.FNGD(model, lr=0.01, derive_steps=1),
    "FromHead": lambda model: fngd.FNGD(model, lr=0.01, policy=fngd.FromHead()),
    "NaturalGradient": lambda model: fngd.NaturalGradient(model, derive_steps=1),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_thousand_attachments_leave_no_leak(kind):
    model, data = network(), batch(0)
    attached_and_detached(model, MAKERS[kind], data, 10)
    snapshots, classes = [held()], attach._attached.cache_info().currsize
    hooks = len(torch_optimizer._global_optimizer_post_hooks)
    for _ in range(2):
        attached_and_detached(model, MAKERS[kind], data, 500)
        snapshots.append(held())
    check_growth(*snapshots)
    assert attach._attached.cache_info().currsize == classes
    assert len(torch_optimizer._global_optimizer_post_hooks) == hooks
    assert [type(module) for module in model] == [nn.Conv2d, nn.ReLU, nn.Flatten, nn.Linear]


def trained(seed, policy, meet=lambda: None, model=None, steps=12):
    """A model of its own after some steps; `meet` waits for others between them."""
    model = network(seed) if model is None else model
    optimizer = fngd.FNGD(model, lr=0.1, momentum=0.9, policy=policy)
    for number in range(steps):
        meet()
        step(model, optimizer, *batch(100 * seed + number, 4 + seed))
    return model, optimizer


def same(first, second):
    pairs = zip(first[0].parameters(), second[0].parameters(), strict=True)
    coefficients = second[1].coefficients
    return all(torch.equal(p, q) for p, q in pairs) and all(
        torch.equal(c, coefficients[name]) for name, c in first[1].coefficients.items()
    )


@every_policy
def test_models_trained_in_threads_at_once_equal_those_trained_one_by_one(policy):
    policy = type(policy)(5) if isinstance(policy, fngd.Shared | fngd.Constant) else policy
    found, barrier = {}, threading.Barrier(3, timeout=60)
    models = [network(seed) for seed in range(3)]  # the random generator is one for all threads

    def work(seed):
        found[seed] = trained(seed, policy, barrier.wait, models[seed])

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(found) == [0, 1, 2]
    assert all(same(found[seed], trained(seed, policy)) for seed in found)


@every_policy
def test_models_trained_step_by_step_in_turn_equal_those_trained_one_by_one(policy):
    models = [network(seed) for seed in range(2)]
    optimizers = [fngd.FNGD(model, lr=0.1, momentum=0.9, policy=policy) for model in models]
    for number in range(12):
        for seed, pair in enumerate(zip(models, optimizers, strict=True)):
            step(*pair, *batch(100 * seed + number, 4 + seed))
    for seed, pair in enumerate(zip(models, optimizers, strict=True)):
        assert same(pair, trained(seed, policy))


class Waiting(nn.Module):
    """Lets one forward pass stay inside the model while something else happens."""

    def __init__(self):
        super().__init__()
        self.inside, self.go, self.waits = threading.Event(), threading.Event(), False

    def forward(self, x):
        if self.waits and torch.is_grad_enabled():
            self.inside.set()
            assert self.go.wait(60)
        return x


@every_policy
def test_one_model_in_two_threads_is_refused_and_the_first_is_not_disturbed(policy):
    model, wait = network(), Waiting()
    model.insert(1, wait)
    optimizer = fngd.FNGD(model, lr=0.1, policy=policy)
    x, y = batch(0)
    wait.waits = True
    worker = threading.Thread(target=step, args=(model, optimizer, x, y))
    worker.start()
    assert wait.inside.wait(60)
    with pytest.raises(RuntimeError, match=r"in a forward pass in another thread.*DistributedDataParallel"):
        model(batch(1, 3)[0])
    with torch.no_grad():
        assert model(batch(1, 3)[0]).shape == (3, 3)
    wait.go.set()
    worker.join()
    alone = network()
    alone.insert(1, Waiting())
    other = fngd.FNGD(alone, lr=0.1, policy=policy)
    step(alone, other, x, y)
    assert same((model, optimizer), (alone, other))
