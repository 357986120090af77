"""Coefficients do not see the scale of the loss; a constant λ does, and `loss_reduction` says how."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import fngd
import reference
from fngd.gram import scale_of
from fngd.layers import derivation
from reference import relative_error


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 4)).to(dtype)


def batch(dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(6, 2, 5, 5, generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.randint(4, (6,), generator=generator)


def coefficients(loss, dtype=torch.float32, **kwargs):
    model = network(dtype)
    x, y = batch(dtype)
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=2, **kwargs)
    loss(model(x), y).backward()
    return optimizer.coefficients


def summed(output, y):
    return cross_entropy(output, y, reduction="sum")


@pytest.mark.parametrize("factor", [1024.0, 2.0**-40, 2.0**60, 65536.0])
def test_a_loss_times_a_power_of_two_has_the_very_same_coefficients(factor):
    mine, theirs = coefficients(lambda o, y: factor * cross_entropy(o, y)), coefficients(cross_entropy)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("factor", [1000.0, 1e-30, 1e30])
def test_a_loss_times_any_factor_has_the_same_coefficients(factor):
    mine, theirs = coefficients(lambda o, y: factor * cross_entropy(o, y)), coefficients(cross_entropy)
    assert all(relative_error(mine[name], theirs[name]) <= 1e-5 for name in theirs)


@pytest.mark.parametrize("policy", [fngd.Fresh(), fngd.FromHead()])
def test_gradients_are_divided_only_where_they_must_be_and_then_by_what_the_last_batch_needed(monkeypatch, policy):
    """On a CPU, that is: elsewhere it would take a wait to know."""
    solved, scales = derivation._solved, []

    def noted(uses, settings, budget, scratch, scale, rhs):
        scales.append(scale)
        return solved(uses, settings, budget, scratch, scale, rhs)

    monkeypatch.setattr(derivation, "_solved", noted)
    model, (x, y) = nn.Linear(50, 4), batch()
    fngd.FNGD(model, lr=0.0, policy=policy)

    def taken(factor):
        scales.clear()
        (factor * cross_entropy(model(x.flatten(1)), y)).backward()
        return [scale if scale is None else float(scale) for scale in scales]

    assert taken(1.0) == taken(2.0**-20) == taken(2.0**20) == [None]
    first, tiny = taken(2.0**-60)
    assert first is None
    assert 2.0**-66 < tiny < 2.0**-60
    assert taken(2.0**-60) == taken(2.0**-70) == [tiny]
    assert taken(1.0)[0] == tiny  # out of range on this scale
    assert len(scales) == 2
    assert len(taken(1.0)) == 1
    assert taken(torch.inf)[1:] == [1.0]  # nothing can be learned from this one
    assert taken(1.0) == [None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_summed_loss_has_the_coefficients_of_the_mean(dtype):
    mine, theirs = coefficients(summed, dtype), coefficients(cross_entropy, dtype)
    assert all(relative_error(mine[name], theirs[name]) <= 1e-5 for name in theirs)


@pytest.mark.parametrize(("loss", "reduction"), [(cross_entropy, "mean"), (summed, "sum")])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_constant_damping_is_the_lambda_of_the_true_per_sample_gradients(loss, reduction, scaled):
    model, (x, y) = network(torch.float64), batch(torch.float64)
    oracle = copy.deepcopy(model)
    fngd.FNGD(model, lr=0.1, damping=0.3, derive_steps=1, loss_reduction=reduction, scale_by_damping=scaled)
    loss(model(x), y).backward()
    for name in ("0", "3"):
        U = reference.alone(oracle, loss, [x], y, list(oracle.get_submodule(name).parameters()))
        expected = reference.natural_gradient(U, 0.3) * (1 if scaled else 0.3) * (6 if reduction == "sum" else 1)
        got = reference.flat([p.grad for p in model.get_submodule(name).parameters()])
        assert relative_error(got, expected) <= 1e-10


def test_scaling_by_the_damping_gives_the_natural_gradient_itself_and_then_the_mean_damping():
    model, (x, y) = network(torch.float64), batch(torch.float64)
    oracle = copy.deepcopy(model)
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=2, scale_by_damping=True)
    lambdas = []
    for factor in (1.0, 3.0):
        optimizer.zero_grad()
        (factor * cross_entropy(model(x), y)).backward()
        U = factor * reference.alone(oracle, cross_entropy, [x], y, list(oracle[3].parameters()))
        lambdas.append(reference.damping(U, 0.005))
        expected = reference.natural_gradient(U, lambdas[-1])
        assert relative_error(reference.flat([p.grad for p in model[3].parameters()]), expected) <= 1e-10
        optimizer.step()
    assert optimizer.phase == "share"
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    U = reference.alone(oracle, cross_entropy, [x], y, list(oracle[3].parameters()))
    expected = U @ optimizer.coefficients["3"] / 6 / (sum(lambdas) / 2)
    assert relative_error(reference.flat([p.grad for p in model[3].parameters()]), expected) <= 1e-10


def test_the_order_of_the_samples_does_not_matter():
    x, y = batch(torch.float64)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    gradients = []
    for chosen in (torch.arange(6), order):
        model = network(torch.float64)
        optimizer = fngd.FNGD(model, lr=0.0, derive_steps=2)
        cross_entropy(model(x[chosen]), y[chosen]).backward()
        gradients.append([p.grad for p in model.parameters()])
        c = optimizer.coefficients["0"]
        reordered = c if len(gradients) == 1 else torch.empty_like(c).index_put_((order,), c)
        gradients[-1].append(reordered)
    assert all(relative_error(a, b) <= 1e-12 for a, b in zip(*gradients, strict=True))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-60000, 60000), min_size=1, max_size=5),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_the_scale_is_the_power_of_two_at_or_below_the_largest_gradient(values, dtype):
    z = torch.tensor(values, dtype=torch.float64).to(dtype)
    scale, largest = float(scale_of([z[:1], z])), float(z.double().abs().max())
    assert math.frexp(scale)[0] == 0.5
    assert scale <= largest < 2 * scale or (scale, largest) == (1.0, 0.0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_the_scale_of_gradients_that_are_not_finite_is_one(bad):
    """It must not spread to the gradients of other parameters."""
    assert scale_of([torch.tensor([1.0, 7.0]), torch.tensor([3.0, bad])]) == 1
