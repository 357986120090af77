"""The same preconditioning under any torch optimizer."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fngd
from fngd.layers.run import LATE
from fngd.planner import ROUTES


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def data(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 5, generator=generator), torch.randint(3, (6,), generator=generator)


def train(model, optimizer, steps=6):
    for seed in range(steps):
        x, y = data(seed)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def test_under_sgd_it_is_fngd():
    mine, theirs = network(), network()
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9, fused=True)
    natural = fngd.NaturalGradient(mine, optimizer, derive_steps=3)
    train(mine, optimizer)
    train(theirs, fngd.FNGD(theirs, lr=0.1, momentum=0.9, derive_steps=3))
    assert natural.phase == "share"
    assert all(torch.equal(p, q) for p, q in zip(mine.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.SGD])
@pytest.mark.parametrize("named", [True, False])
def test_steps_are_counted_under_any_optimizer_named_or_not(optimizer, named):
    model = network()
    inner = optimizer(model.parameters(), lr=1e-3)
    with fngd.NaturalGradient(model, inner if named else None, derive_steps=4) as natural:
        train(model, inner, steps=4)
        assert natural.step_count == 4
        assert natural.phase == "share"
        assert len(natural.coefficients) == 2
    train(model, inner, steps=1)
    assert natural.step_count == 4


def test_without_an_optimizer_only_the_one_that_holds_the_first_layer_counts():
    model, other = network(), network()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.AdamW(model[2].parameters(), lr=0.1)
    stranger = torch.optim.SGD(other.parameters(), lr=0.1)
    with fngd.NaturalGradient(model, derive_steps=9) as natural:
        train(other, stranger, steps=2)
        x, y = data(0)
        cross_entropy(model(x), y).backward()
        first.step()
        second.step()
        assert natural.step_count == 1


def test_its_state_goes_on():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    natural = fngd.NaturalGradient(model, optimizer, derive_steps=3)
    train(model, optimizer, steps=4)
    resumed = network()
    resumed.load_state_dict(model.state_dict())
    second = torch.optim.AdamW(resumed.parameters(), lr=1e-2)
    second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    continued = fngd.NaturalGradient(resumed, second, derive_steps=3)
    continued.load_state_dict(natural.state_dict())
    assert continued.phase == "share"
    train(model, optimizer)
    train(resumed, second)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), resumed.parameters(), strict=True))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("budget", [1, 1 << 26])
def test_any_route_and_budget_give_the_same_gradient(route, budget):
    gradients = []
    for settings in ({}, {"gram_route": route, "gram_budget": budget}):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).double()
        optimizer = fngd.FNGD(model, lr=0.1, policy=fngd.Fresh(), **settings)
        x = torch.randn(6, 2, 4, 4, dtype=torch.float64)
        nn.functional.cross_entropy(model(x), torch.arange(6) % 3).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        optimizer.detach()
    for mine, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)


def test_who_never_steps_piles_nothing_up():
    model = network()
    with fngd.NaturalGradient(model, policy=fngd.Fresh()) as natural:
        for seed in range(50):
            x, y = data(seed)
            cross_entropy(model(x), y).backward()
            assert len(natural._run.reports) < LATE * len(natural.layers)
            assert len(natural._run.doubts) <= 1 + LATE * len(natural.layers)
        assert {statistics.batches for statistics in natural.statistics().values()} == {50}


def test_a_batch_that_is_not_finite_is_warned_of_although_others_have_been_settled_since():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    natural = fngd.NaturalGradient(model, optimizer, policy=fngd.Fresh())
    x, y = data(0)
    cross_entropy(model(x * torch.nan), y).backward()
    natural.statistics()
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    with pytest.warns(UserWarning, match="NaN or Inf in the gradients of 2 layers"):
        optimizer.step()
