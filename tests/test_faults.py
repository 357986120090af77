"""Batches that go wrong, and batches that only look wrong: under every policy, deriving and sharing.

What is finite follows the formula, in float32, whatever its scale or rank. What is not takes the plain gradient, stays
out of c̃ and leaves nothing behind.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fngd
import formulas
from formulas import Formula
from reference import relative_error

POLICIES = [
    fngd.Shared(2),
    fngd.Constant(2),
    fngd.Refreshed(3, 0.5),
    fngd.Fresh(),
    fngd.FromHead(),
    fngd.FromHead(rhs="residual"),
]
"""Each meets a fault at step 1 and one at step 3; those that share meet one of them deriving and one sharing."""
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=str)
SIZE = 6


class Images(nn.Sequential):
    """A convolution in front, for rows of 12."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)
        )

    def forward(self, x):
        return super().forward(x.unflatten(1, (1, 3, 4)))


def network():
    """Units that are off for some samples and for none of them altogether."""
    torch.manual_seed(0)
    model = Images()
    nn.init.constant_(model[3].bias, 0.5)
    return model


def batch(seed=0, size=SIZE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 12, generator=generator), torch.randint(3, (size,), generator=generator)


def same_samples(x, y):
    return x[:1].expand_as(x), y[:1].expand_as(y)


FAULTS = {
    "identical samples": lambda x, y: (*same_samples(x, y), 1.0),
    "one input, several labels": lambda x, y: (x[:1].expand_as(x), y, 1.0),
    "a constant input": lambda x, y: (torch.full_like(x, 3.0), y, 1.0),
    "an input of zeros": lambda x, y: (torch.zeros_like(x), y, 1.0),
    "one label": lambda x, y: (x, torch.zeros_like(y), 1.0),
    "a batch of one": lambda x, y: (x[:1], y[:1], 1.0),
    "zero gradients": lambda x, y: (x, y, 0.0),
    "a loss of 1e-30": lambda x, y: (x, y, 1e-30),
    "a loss of 1e30": lambda x, y: (x, y, 1e30),
    "a large input": lambda x, y: (1e6 * x, y, 1.0),
    "a small input": lambda x, y: (1e-20 * x, y, 1.0),
    "one sample far from the others": lambda x, y: (x * torch.tensor([1e4, 1, 1, 1, 1, 1]).unsqueeze(1), y, 1.0),
}


def followed(policy, faulty, model, tolerance=1e-4):
    """A good batch, a faulty one, a good one, a faulty one, a good one: gradients are the formula's at each step."""
    twin = formulas.exact(model)
    formula, optimizer = Formula(twin, policy), fngd.FNGD(model, lr=0.0, policy=policy)
    for step in range(5):
        x, y, factor = faulty(*batch(step)) if step in (1, 3) else (*batch(step), 1.0)
        optimizer.zero_grad()
        twin.zero_grad()
        (factor * cross_entropy(model(x), y)).backward()
        formula.backward(x, y, factor)
        mine, theirs = formulas.found_gradients(model), formulas.found_gradients(twin)
        for name, expected in theirs.items():
            assert relative_error(mine[name], expected) <= tolerance, (step, name)
        optimizer.step()
        formula.count()
    assert {s.skipped for s in optimizer.statistics().values()} == {0}
    return optimizer


@every_policy
@pytest.mark.parametrize("name", FAULTS)
def test_a_finite_batch_follows_the_formula_however_odd_it_is(name, policy):
    followed(policy, FAULTS[name], network())


@every_policy
@pytest.mark.parametrize("index", [0, 3])
def test_a_layer_whose_relus_are_dead_follows_the_formula_and_so_does_what_is_above(index, policy):
    """All units off at steps 1 and 3: no gradient reaches what is below."""
    model = network()
    with torch.no_grad():
        model[0].weight.abs_()
        if index == 3:
            model[3].weight.abs_().neg_()
            model[3].bias.fill_(2.0)

    def dead(x, y):
        return torch.full_like(x, -1e3 if index == 0 else 1e3), y, 1.0

    plain, (x, y, _) = copy.deepcopy(model), dead(*batch())
    cross_entropy(plain(x), y).backward()
    assert all((p.grad == 0).all() for module in list(plain)[: index + 1] for p in module.parameters())
    plain.zero_grad()
    cross_entropy(plain(batch()[0]), y).backward()
    assert all((p.grad != 0).any() for p in plain.parameters())
    followed(policy, dead, model)


@every_policy
@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_coefficients_of_tiny_and_huge_losses_are_those_of_the_loss_itself(factor, policy):
    found = []
    for scale in (1.0, factor):
        model = network()
        optimizer = fngd.FNGD(model, lr=0.0, policy=policy)
        for seed in range(2):
            (scale * cross_entropy(model(batch(seed)[0]), batch(seed)[1])).backward()
            optimizer.step()
        found.append(optimizer.coefficients)
    assert all(relative_error(c, found[0][name]) <= 1e-5 for name, c in found[1].items())


BROKEN = {
    "nan in an input": (lambda x: x.index_put((torch.tensor(2), torch.tensor(1)), torch.tensor(torch.nan)), None),
    "inf in an input": (lambda x: x.index_put((torch.tensor(2), torch.tensor(1)), torch.tensor(torch.inf)), None),
    "all inputs nan": (lambda x: x * torch.nan, None),
    "nan in a loss": (lambda x: x, torch.nan),
    "inf in a loss": (lambda x: x, torch.inf),
    "minus inf in a loss": (lambda x: x, -torch.inf),
}


def broken_backward(model, x, y, name):
    change, factor = BROKEN[name]
    losses = cross_entropy(model(change(x)), y, reduction="none")
    factors = torch.ones(SIZE)
    if factor is not None:
        factors[4] = factor
    (factors * losses).mean().backward()


@every_policy
@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.filterwarnings("ignore:fngd. NaN or Inf")
def test_a_batch_that_is_not_finite_hides_nothing_and_leaves_nothing_behind(name, policy):
    """As in a loop that skips such a step: each good step after it is the one of a run that never met the batch."""
    model, same = network(), network()
    optimizer, undisturbed = (fngd.FNGD(m, lr=0.3, momentum=0.9, policy=policy) for m in (model, same))
    for step in range(4):
        plain, seen = copy.deepcopy(model), {n: s.batches for n, s in optimizer.statistics().items()}
        optimizer.zero_grad()
        broken_backward(model, *batch(step), name)
        plain.zero_grad()
        broken_backward(plain, *batch(step), name)
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(mine.grad.isfinite(), theirs.grad.isfinite())
        assert {n: s.batches for n, s in optimizer.statistics().items()} == seen
        for m, rule in ((model, optimizer), (same, undisturbed)):
            rule.zero_grad()
            cross_entropy(m(batch(step)[0]), batch(step)[1]).backward()
            rule.step()
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), same.parameters(), strict=True))
    assert all(torch.equal(c, undisturbed.coefficients[n]) for n, c in optimizer.coefficients.items())


@every_policy
def test_an_empty_batch_has_zero_gradients_and_changes_no_coefficient(policy):
    model = network()
    optimizer = fngd.FNGD(model, lr=0.1, policy=policy)
    for step in range(5):
        optimizer.zero_grad()
        if step in (1, 3):
            before = optimizer.coefficients
            model(torch.empty(0, 12)).sum().backward()
            assert all((p.grad == 0).all() for p in model.parameters())
            assert all(torch.equal(c, before[name]) for name, c in optimizer.coefficients.items())
        else:
            cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())


@every_policy
@pytest.mark.filterwarnings("ignore:fngd. layer '3' is used outside of the model")
def test_training_goes_on_after_an_error_in_the_middle_of_a_forward_pass(policy):
    """A batch of a wrong shape, caught: nothing of it is left in the next pass."""
    model, same = network(), network()
    optimizer, undisturbed = (fngd.FNGD(m, lr=0.3, policy=policy) for m in (model, same))
    for step in range(4):
        with pytest.raises(RuntimeError):
            model(torch.randn(4, 11))
        with pytest.raises(RuntimeError):
            model[3](torch.randn(4, 7))
        for m, rule in ((model, optimizer), (same, undisturbed)):
            rule.zero_grad()
            cross_entropy(m(batch(step)[0]), batch(step)[1]).backward()
            rule.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), same.parameters(), strict=True))
