"""Sharing steps of a convolution without bias: torch's own node, which reads its input scaled."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fngd
from fngd.nodes import Weighted
from reference import relative_error

M = 6


def convolution(**kwargs):
    torch.manual_seed(3)
    return nn.Conv2d(2, 3, 3, **{"bias": False, "padding": 1, **kwargs})


def shared(model, policy=None):
    """An optimizer of the model that shares, with coefficients that differ from sample to sample."""
    optimizer = fngd.FNGD(model, lr=0.0, policy=policy or fngd.Shared(1))
    model(torch.randn(M, 2, 5, 5)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def inputs():
    return torch.randn(M, 2, 5, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)


def expected(module, c, x):
    """Each sample alone, then their weighted sum."""
    module, total = copy.deepcopy(module), None
    for m, weight in enumerate(c):
        (gradient,) = torch.autograd.grad(module(x[m : m + 1]).pow(3).sum(), module.weight)
        total = weight * gradient if total is None else total + weight * gradient
    return total


def gradients(model, x, loss=lambda output: output.pow(3).sum()):
    model.zero_grad()
    output = model(x)
    (gx,) = torch.autograd.grad(loss(output), x, retain_graph=True)
    loss(output).backward()
    return gx, next(model.parameters()).grad


def with_hooks(model, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        return model(x)


CALLS = {
    "plain": lambda model, x: model(x),
    "checkpoint": lambda model, x: checkpoint(model, x, use_reentrant=False),
    "reentrant checkpoint": lambda model, x: checkpoint(model, x, use_reentrant=True),
    "other hooks": with_hooks,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kwargs", [{}, {"groups": 1, "dilation": 2}, {"stride": 2}, {"padding": 0}], ids=str)
def test_the_gradient_is_the_weighted_sum_of_the_samples(kwargs, call):
    plain = convolution(**kwargs).double()
    model = copy.deepcopy(plain)
    optimizer = fngd.FNGD(model, lr=0.0, policy=fngd.Shared(1))
    model(torch.randn(M, 2, 5, 5, dtype=torch.float64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    x, c = inputs().detach().double().requires_grad_(), optimizer.coefficients[""]
    assert c.std() > 1e-4
    CALLS[call](model, x).pow(3).sum().backward()
    assert relative_error(model.weight.grad, expected(plain, c, x.detach())) <= 1e-12
    (gx,) = torch.autograd.grad(plain(x).pow(3).sum(), x)
    assert relative_error(x.grad, gx) <= 1e-12


@pytest.mark.parametrize(
    ("kwargs", "own"),
    [({}, False), ({"bias": True}, True), ({"stride": 2}, True), ({"out_channels": 1}, True), ({"padding": 0}, True)],
    ids=str,
)
def test_no_python_stands_around_torchs_node_where_its_input_is_what_is_scaled(kwargs, own):
    torch.manual_seed(0)
    model = nn.Conv2d(**{"in_channels": 2, "out_channels": 3, "kernel_size": 3, "bias": False, "padding": 1, **kwargs})
    optimizer = shared(model)
    node = model(inputs()).grad_fn
    assert (type(node) is Weighted._backward_cls) == own
    assert own or node.name() == "ConvolutionBackward0"
    optimizer.detach()


def test_a_graph_may_be_gone_through_twice():
    model = convolution()
    optimizer = shared(model)
    x = inputs()
    first = gradients(model, x)[1].clone()
    output = model(x)
    model.zero_grad()
    output.pow(3).sum().backward(retain_graph=True)
    assert torch.equal(model.weight.grad, first)
    output.pow(3).sum().backward()
    assert torch.equal(model.weight.grad, 2 * first)
    optimizer.detach()


def test_an_input_that_has_been_modified_in_place_is_named():
    model = convolution()
    optimizer = shared(model)
    x = inputs() * 1
    output = model(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
        output.sum().backward()
    optimizer.detach()


def test_double_backward_is_refused():
    model = convolution()
    optimizer = shared(model)
    with pytest.raises(RuntimeError, match=r"double backward"):
        torch.autograd.grad(model(inputs()).pow(3).sum(), model.weight, create_graph=True)
    optimizer.detach()


def test_what_is_saved_of_an_evaluation_is_nothing():
    model = convolution()
    optimizer = shared(model)
    with torch.no_grad():
        assert model(inputs()).grad_fn is None
    optimizer.detach()


def test_under_autocast_the_gradient_is_that_of_the_function_around_it(monkeypatch):
    model, x = convolution(), inputs()
    optimizer = shared(model)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x)
    output.float().pow(3).sum().backward()
    mine, model.weight.grad = model.weight.grad, None
    monkeypatch.setattr("fngd.layers.sharing.saving_is_free", lambda: False)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x)
    output.float().pow(3).sum().backward()
    assert torch.equal(mine, model.weight.grad)
    optimizer.detach()
