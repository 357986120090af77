"""fully_shard: parameters are DTensors outside of a forward pass and plain tensors inside of one."""

import pytest
import torch
from oracle import ALPHA, LAYERS, MOMENTUM, RATE, Network, batches, network, trained
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

import fngd

STEPS, DERIVE = 5, 3
CLOSE = 1e-11


class Checkpointed(Network):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def shard(model, **options):
    fully_shard(model.conv, **options)
    fully_shard(model.twice, **options)
    return fully_shard(model, **options)


def make(model, **kwargs):
    kwargs = {"derive_steps": DERIVE, **kwargs}
    return fngd.FNGD(model, lr=RATE, momentum=MOMENTUM, alpha=ALPHA, **kwargs)


def train(model, optimizer, data, rank, largest=None):
    for ranks in data:
        *first, (x, y) = ranks[rank]
        optimizer.zero_grad()
        for earlier, labels in first:
            model.set_requires_gradient_sync(False)
            cross_entropy(model(earlier), labels).backward()
            model.set_requires_gradient_sync(True)
        cross_entropy(model(x), y).backward()
        if largest is not None:
            clip_grad_norm_(model.parameters(), largest)
        optimizer.step()


def whole(model):
    return [p.full_tensor().detach() for p in model.parameters()]


def sharded_training(rank, data, kind, options):
    torch.manual_seed(0)
    model = shard(kind().double(), **options)
    optimizer = make(model)
    train(model, optimizer, data, rank)
    assert optimizer.phase == "share"
    return whole(model), optimizer.coefficients


def attached_first(rank, data):
    model = network()
    natural = fngd.NaturalGradient(model, derive_steps=DERIVE, alpha=ALPHA)
    model = shard(model)
    sgd = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    train(model, sgd, data, rank)
    found = whole(model), natural.coefficients
    natural.detach()
    assert isinstance(model, FSDPModule)
    assert "_fngd" not in vars(model)
    train(model, sgd, data, rank)
    return found


def check(answers, data):
    expected, shared = trained(network(), data, DERIVE)
    for parameters, coefficients in answers:
        assert all(
            torch.allclose(p, q, rtol=0, atol=CLOSE) for p, q in zip(parameters, expected.parameters(), strict=True)
        )
        assert all(torch.allclose(coefficients[name], shared[name], rtol=0, atol=CLOSE) for name in LAYERS)


@pytest.mark.parametrize("reshard", [True, False], ids=["resharded after forward", "not resharded"])
@pytest.mark.parametrize("kind", [Network, Checkpointed], ids=["usual", "activations checkpointed"])
def test_sharded_training_is_the_mean_of_each_ranks_weighted_gradient(processes, kind, reshard):
    data = batches(STEPS, 2)
    check(processes.run(2, sharded_training, data, kind, {"reshard_after_forward": reshard}), data)


def test_a_model_that_is_attached_first_may_be_sharded_afterwards(processes):
    data = batches(STEPS, 2)
    check(processes.run(2, attached_first, data), data)


def test_micro_batches_without_synchronisation_are_weighted_each_by_its_own(processes):
    data = batches(STEPS, 2, micros=2)
    check(processes.run(2, sharded_training, data, Network, {}), data)
