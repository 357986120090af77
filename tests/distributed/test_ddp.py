"""DistributedDataParallel: each rank weights its own samples, then the usual all-reduce."""

import pytest
import torch
from oracle import ALPHA, LAYERS, MOMENTUM, RATE, batches, network, trained
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import fngd

STEPS, DERIVE = 5, 3
CLOSE = 1e-11


def make(model, **kwargs):
    kwargs = {"derive_steps": DERIVE, **kwargs}
    return fngd.FNGD(model, lr=RATE, momentum=MOMENTUM, alpha=ALPHA, **kwargs)


def wrapped(model, order, **options):
    """The wrapped model and its optimizer, attached before or after."""
    if order == "attached first":
        optimizer = make(model)
        return DistributedDataParallel(model, **options), optimizer
    ddp = DistributedDataParallel(model, **options)
    return ddp, make(ddp)


def train(ddp, optimizer, data, rank):
    for ranks in data:
        *first, (x, y) = ranks[rank]
        optimizer.zero_grad()
        with ddp.no_sync():
            for earlier, labels in first:
                cross_entropy(ddp(earlier), labels).backward()
        cross_entropy(ddp(x), y).backward()
        optimizer.step()


def ddp_training(rank, order, data, spare, options):
    model = network(spare=spare)
    ddp, optimizer = wrapped(model, order, **options)
    train(ddp, optimizer, data, rank)
    return [p.detach() for p in model.parameters()], optimizer.coefficients, optimizer.state_dict()


def check(processes, ranks, order="wrapped first", data=None, spare=False, **options):
    data = data or batches(STEPS, ranks)
    expected, shared = trained(network(spare=spare), data, DERIVE)
    answers = processes.run(ranks, ddp_training, order, data, spare, options)
    for parameters, coefficients, state in answers:
        for p, q in zip(parameters, expected.parameters(), strict=True):
            assert torch.allclose(p, q, rtol=0, atol=CLOSE)
        assert sorted(coefficients) == sorted(LAYERS)
        for name, c in coefficients.items():
            assert torch.allclose(c, shared[name], rtol=0, atol=CLOSE)
            assert torch.equal(c, answers[0][1][name])
            history, first = (s["natural_gradient"]["layers"][name] for s in (state, answers[0][2]))
            assert all(torch.equal(history[key], first[key]) for key in history)


@pytest.mark.parametrize("order", ["wrapped first", "attached first"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_training_on_several_ranks_is_the_mean_of_each_ranks_weighted_gradient(processes, ranks, order):
    check(processes, ranks, order)
