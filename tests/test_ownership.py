"""An output gradient is changed in place only where nobody else can see it."""

from typing import ClassVar

import pytest
import torch
from torch import nn

import fngd
import fngd.weighted
from fngd.ownership import is_last, references
from fngd.scratch import Scratch
from reference import relative_error

M = 5


class Asked(torch.autograd.Function):
    """A node that notes down whether its output gradient is its own."""

    answers: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, z):
        Asked.answers.append(is_last(references(z)))
        return z


class Keeps(torch.autograd.Function):
    """A node that keeps what it sends on."""

    kept: ClassVar[list[torch.Tensor]] = []

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, z):
        Keeps.kept.append(2 * z)
        return Keeps.kept[-1]


def hooked(y, register):
    register(y)
    return (2 * y).sum()


LAST = {
    "a product": lambda x, y: (2 * y).sum(),
    "used twice": lambda x, y: (2 * y).sum() + (3 * y).sum(),
    "a hook that looks": lambda x, y: hooked(y, lambda y: y.register_hook(lambda z: None)),
    "a hook that replaces": lambda x, y: hooked(y, lambda y: y.register_hook(lambda z: 3 * z)),
    "a gradient that is retained": lambda x, y: hooked(y, lambda y: y.retain_grad()),
    "channels last": lambda x, y: (2 * y.to(memory_format=torch.channels_last)).sum(),
}
kept = []
NOT_LAST = {
    "a sum with another branch": lambda x, y: (2 * (y + x)).sum(),
    "a hook that keeps": lambda x, y: hooked(y, lambda y: y.register_hook(kept.append)),
    "a hook of the node": lambda x, y: hooked(y, lambda y: y.grad_fn.register_hook(lambda gx, z: None)),
    "a part of a concatenation": lambda x, y: (2 * torch.cat((y, x))).sum(),
    "one number for all": lambda x, y: y.sum(),
    "a view": lambda x, y: (2 * y.flatten(1)).sum(),
    "gaps": lambda x, y: (2 * torch.cat((y, x), -1)).sum(),
    "a node that keeps": lambda x, y: Keeps.apply(y).sum(),
}


@pytest.fixture
def nodes():
    Asked.answers.clear()
    yield
    Keeps.kept.clear()
    kept.clear()


@pytest.mark.parametrize(("graph", "expected"), [(g, True) for g in LAST] + [(g, False) for g in NOT_LAST])
def test_a_gradient_is_ones_own_if_nobody_else_holds_it(nodes, graph, expected):
    x = torch.randn(M, 2, 3, 4, requires_grad=True)
    {**LAST, **NOT_LAST}[graph](x, Asked.apply(x)).backward()
    assert Asked.answers == [expected]


def test_what_is_asked_for_or_passed_in_is_not_ones_own(nodes):
    x, z = torch.randn(M, 3, requires_grad=True), torch.ones(M, 3)
    y = Asked.apply(x)
    torch.autograd.grad((2 * y).sum(), (x, y))
    Asked.apply(x).backward(z)
    Asked.apply(x).backward(torch.ones(M, 3))
    assert Asked.answers == [False, False, False]


def test_nothing_is_known_of_other_tensors():
    assert references(torch.empty(3, device="meta")) is None
    assert references(nn.Parameter(torch.ones(3))) is None
    assert references(torch.ones(3).expand(2, 3)) is None
    assert not is_last(None)


def test_nothing_is_known_where_torch_does_not_count(monkeypatch):
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    assert references(torch.ones(3)) is None


LAYERS = {
    "convolution": (lambda: nn.Conv2d(2, 2, 3, padding=1, bias=False), (M, 2, 5, 5)),
    "convolution with a bias": (lambda: nn.Conv2d(2, 2, 3, padding=1), (M, 2, 5, 5)),
    "linear": (lambda: nn.Linear(4, 4), (M, 3, 4)),
}


@pytest.fixture(params=LAYERS)
def layer(request, monkeypatch):
    """A layer that shares coefficients, its input, and what it is without them."""
    monkeypatch.setattr(fngd.weighted, "LARGE", 0)
    torch.manual_seed(0)
    make, shape = LAYERS[request.param]
    module = make().double()
    optimizer = fngd.FNGD(module, lr=0.0, policy=fngd.Shared(1))
    module(torch.randn(shape, dtype=torch.float64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    yield module, torch.randn(shape, dtype=torch.float64, requires_grad=True), optimizer
    optimizer.detach()


def weighted_sum(module, c, x, z):
    """Each sample alone, then their weighted sum."""
    parameters, totals = list(module.parameters()), None
    for m, weight in enumerate(c):
        alone = torch.func.functional_call(module, dict(module.named_parameters()), (x[m : m + 1].detach(),))
        found = torch.autograd.grad(alone, parameters, weight * z[m : m + 1])
        totals = found if totals is None else [total + each for total, each in zip(totals, found, strict=True)]
    return totals


def check(layer, z, gx):
    """The weighted gradients of the parameters, and the plain one of the input."""
    module, x, optimizer = layer
    c = optimizer.coefficients[""]
    found = [p.grad for p in module.parameters()]
    optimizer.detach()
    assert c.std() > 1e-4
    for gradient, expected in zip(found, weighted_sum(module, c, x, z), strict=True):
        assert relative_error(gradient, expected) <= 1e-12
    (expected,) = torch.autograd.grad(module(x), x, z)
    assert relative_error(gx, expected) <= 1e-12


def test_a_gradient_of_ones_own_is_scaled_without_a_copy(layer, monkeypatch):
    module, x, _ = layer
    y = module(x)
    z = 3 * y.detach() ** 2
    monkeypatch.delattr(Scratch, "product")
    y.pow(3).sum().backward()
    check(layer, z, x.grad)


def test_another_branch_gets_its_gradient_unscaled(layer):
    module, x, _ = layer
    y, beside = module(x), (2 * x.detach()).requires_grad_()
    z = 3 * (y.detach() + beside.detach()) ** 2
    (beside + y).pow(3).sum().backward()
    assert torch.equal(beside.grad, z)
    check(layer, z, x.grad)


def test_hooks_see_and_keep_the_gradient_unscaled(layer):
    module, x, _ = layer
    y, seen = module(x), []
    z = 3 * y.detach() ** 2
    y.register_hook(seen.append)
    y.grad_fn.register_hook(lambda _, sent: seen.append(sent[0].clone()))
    y.pow(3).sum().backward()
    assert torch.equal(seen[0], z)
    assert torch.equal(seen[1], z)
    check(layer, z, x.grad)


def test_a_gradient_that_is_passed_in_stays_as_it_is(layer):
    module, x, _ = layer
    z = torch.randn_like(module(x))
    before = z.clone()
    module(x).backward(z)
    assert torch.equal(z, before)
    check(layer, z, x.grad)


def test_a_graph_that_is_gone_through_twice_gives_the_same_twice(layer):
    module, x, _ = layer
    error = module(x).pow(3).sum()
    error.backward(retain_graph=True)
    first = [p.grad.clone() for p in module.parameters()]
    error.backward()
    for parameter, once in zip(module.parameters(), first, strict=True):
        assert torch.equal(parameter.grad, 2 * once)
