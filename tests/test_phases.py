"""Deriving, switching, sharing: what the training loop sees."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fngd
import reference
from reference import relative_error


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batches(sizes, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(m, 5, generator=generator, dtype=torch.float64), torch.randint(3, (m,), generator=generator))
        for m in sizes
    ]


def columns(model, x, y, index):
    """U of one layer; a copy of an attached model is a plain one."""
    plain = copy.deepcopy(model)
    return reference.alone(plain, cross_entropy, [x], y, list(plain[index].parameters()))


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    optimizer.step()
    return gradients


def test_the_phase_switches_after_derive_steps():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=3)
    seen = []
    for x, y in batches([6] * 5):
        seen.append(optimizer.phase)
        step(model, optimizer, x, y)
    assert seen == ["derive"] * 3 + ["share"] * 2


def test_shared_coefficients_are_the_mean_of_the_derived_ones():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=3)
    derived = []
    for x, y in batches([6] * 3):
        U = columns(model, x, y, 0)
        derived.append(reference.coefficients(U, reference.damping(U, 0.005)))
        step(model, optimizer, x, y)
    assert relative_error(optimizer.coefficients["0"], torch.stack(derived).mean(0)) <= 1e-10


def test_a_short_last_batch_is_solved_alone_and_stays_out_of_the_mean():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=3)
    (x, y), (short, labels), _ = batches([6, 4, 6])
    step(model, optimizer, x, y)
    before = optimizer.coefficients["0"]
    U = columns(model, short, labels, 0)
    gradients = step(model, optimizer, short, labels)
    expected = U @ reference.coefficients(U, reference.damping(U, 0.005)) / 4
    assert relative_error(reference.flat([gradients["0.weight"], gradients["0.bias"]]), expected) <= 1e-10
    assert torch.equal(optimizer.coefficients["0"], before)


def test_a_short_batch_shares_the_first_coefficients_at_the_same_mean():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=1)
    (x, y), (short, labels) = batches([6, 4])
    step(model, optimizer, x, y)
    c = optimizer.coefficients["0"]
    U = columns(model, short, labels, 0)
    gradients = step(model, optimizer, short, labels)
    expected = U @ (c[:4] * c.mean() / c[:4].mean()) / 4
    assert relative_error(reference.flat([gradients["0.weight"], gradients["0.bias"]]), expected) <= 1e-10


def test_a_longer_batch_while_deriving_starts_the_mean_anew():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=3)
    for x, y in batches([4, 6, 6]):
        step(model, optimizer, x, y)
    assert len(optimizer.coefficients["0"]) == 6


def test_the_constant_policy_multiplies_the_plain_gradient_by_one_number():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.0, policy=fngd.Constant(2))
    data = batches([6, 6, 9])
    for x, y in data[:2]:
        step(model, optimizer, x, y)
    plain = copy.deepcopy(model)
    gradients = step(model, optimizer, *data[2])
    cross_entropy(plain(data[2][0]), data[2][1]).backward()
    c = optimizer.coefficients
    assert {len(value) for value in c.values()} == {1}
    for name, p in plain.named_parameters():
        assert relative_error(gradients[name], p.grad * c[name.split(".")[0]]) <= 1e-12


def test_a_refreshed_policy_derives_again():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.1, policy=fngd.Refreshed(3, 0.5))
    phases, shared = [], []
    for x, y in batches([6] * 7):
        phases.append(optimizer.phase[0])
        step(model, optimizer, x, y)
        shared.append(optimizer.preconditioner.layers[0].sharing.c)
    assert "".join(phases) == "dssdssd"
    assert torch.equal(shared[0], shared[2])
    assert not torch.equal(shared[2], shared[3])


def test_fresh_never_shares():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.1, policy=fngd.Fresh())
    for x, y in batches([6] * 4):
        step(model, optimizer, x, y)
        assert optimizer.phase == "derive"


@pytest.mark.parametrize("policy", [fngd.Fresh(), fngd.Shared(1), fngd.Constant(1)], ids=str)
def test_accumulated_micro_batches_are_weighted_each_by_its_own_coefficients(policy):
    (x, y), *micro = batches([4, 4, 4])
    model, single = network(), network()
    optimizer, alone = (fngd.FNGD(m, lr=0.0, policy=policy) for m in (model, single))
    step(model, optimizer, x, y)
    step(single, alone, x, y)
    optimizer.zero_grad()
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for part in micro:
        cross_entropy(model(part[0]), part[1]).backward()
        twin = copy.deepcopy((single, alone))
        for name, gradient in step(twin[0], twin[1], *part).items():
            total[name] += gradient
    for name, p in model.named_parameters():
        assert relative_error(p.grad, total[name]) <= 1e-12


def test_two_forward_passes_before_one_backward_are_two_batches():
    """A sample is what enters the model: both calls of the model derive on their own."""
    first, second = batches([4, 6])
    together, apart = network(), network()
    fngd.FNGD(together, lr=0.0, derive_steps=9)
    fngd.FNGD(apart, lr=0.0, derive_steps=9)
    (cross_entropy(together(first[0]), first[1]) + cross_entropy(together(second[0]), second[1])).backward()
    for x, y in (first, second):
        cross_entropy(apart(x), y).backward()
    for mine, theirs in zip(together.parameters(), apart.parameters(), strict=True):
        assert relative_error(mine.grad, theirs.grad) <= 1e-12


def test_a_second_backward_through_a_retained_graph_adds_the_same_gradient():
    model = network()
    fngd.FNGD(model, lr=0.0, derive_steps=9)
    ((x, y),) = batches([5])
    loss = cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters()]
    loss.backward()
    for p, gradient in zip(model.parameters(), once, strict=True):
        assert relative_error(p.grad, 2 * gradient) <= 1e-12


def test_an_input_gradient_alone_leaves_no_trace():
    model, fresh = network(), network()
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=9)
    fngd.FNGD(fresh, lr=0.0, derive_steps=9)
    ((x, y),) = batches([5])
    mine = x.clone().requires_grad_()
    loss = cross_entropy(model(mine), y)
    torch.autograd.grad(loss, mine, retain_graph=True)
    assert not optimizer.coefficients
    loss.backward()
    cross_entropy(fresh(x), y).backward()
    for p, q in zip(model.parameters(), fresh.parameters(), strict=True):
        assert relative_error(p.grad, q.grad) <= 1e-13


def test_statistics_are_those_of_the_derived_batches():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=2)
    expected = []
    for x, y in batches([6, 6]):
        U = columns(model, x, y, 2)
        lam = reference.damping(U, 0.005)
        c = reference.coefficients(U, lam)
        eigenvalues = torch.linalg.eigvalsh(reference.gram(U))
        rank = eigenvalues.sum() ** 2 / eigenvalues.square().sum()
        cosine = torch.cosine_similarity(U @ c, U.sum(1), 0)
        expected.append(torch.stack([c.mean(), c.std(correction=0), lam, rank, cosine]))
        step(model, optimizer, x, y)
    got = optimizer.statistics()["2"]
    values = [got.coefficient_mean, got.coefficient_spread, got.damping, got.effective_rank, got.cosine]
    for mine, theirs in zip(values, torch.stack(expected).mean(0), strict=True):
        assert mine == pytest.approx(theirs.item(), rel=1e-9)
    assert got.shared_spread == pytest.approx(optimizer.coefficients["2"].std(correction=0).item())
    assert (got.batches, got.skipped) == (2, 0)


def test_a_layer_that_never_derived_takes_the_plain_gradient_and_is_named():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.late, self.both = nn.Linear(5, 3), nn.Linear(5, 3), False

        def forward(self, x):
            return self.used(x) + self.late(x) if self.both else self.used(x)

    model = Branches().double()
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=1)
    ((x, y), *_) = batches([6])
    cross_entropy(model(x), y).backward()
    optimizer.step()
    model.both = True
    plain = copy.deepcopy(model)
    optimizer.zero_grad()
    with pytest.warns(UserWarning, match="'late' had no finite gradient"):
        output = model(x)
    cross_entropy(output, y).backward()
    cross_entropy(plain(x), y).backward()
    assert relative_error(model.late.weight.grad, plain.late.weight.grad) <= 1e-13


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_batch_that_is_not_finite_is_counted_warned_of_once_and_kept_out_of_the_mean(bad):
    model = network()
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=4)
    ((x, y),) = batches([6])
    step(model, optimizer, x, y)
    before = optimizer.coefficients["0"]
    broken = x.clone()
    broken[0, 0] = bad
    with pytest.warns(UserWarning, match="NaN or Inf"):
        step(model, optimizer, broken, y)
    step(model, optimizer, broken, y)
    assert torch.equal(optimizer.coefficients["0"], before)
    assert optimizer.statistics()["0"].skipped == 2
    assert optimizer.statistics()["0"].batches == 1


def test_the_gradient_of_a_batch_that_is_not_finite_is_the_plain_one():
    """Only one sample of the second layer is broken: the plain gradient is broken too, and nothing hides it."""
    model = network()
    plain = copy.deepcopy(model)
    fngd.FNGD(model, lr=0.0, derive_steps=4)
    ((x, y),) = batches([6])
    weights = torch.ones(6, dtype=torch.float64)
    weights[2] = torch.inf
    for m in (model, plain):
        (weights * cross_entropy(m(x), y, reduction="none")).mean().backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad.isfinite(), theirs.grad.isfinite())


def test_small_and_large_weights_take_one_coefficient_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = []
    for small in (0, 1 << 20):
        monkeypatch.setattr("fngd.layers.sharing.SMALL", small)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2)).double()
        _fill(model)
        optimizer = fngd.FNGD(model, lr=0.1, policy=fngd.Constant(1))
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.linspace(-1, 1, 5 * 108, dtype=torch.float64).view(5, 3, 6, 6).sin()).square().sum().backward()
            optimizer.step()
        assert optimizer.phase == "share"
        gradients.append([p.grad for p in model.parameters()])
    for plain, native in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, native, rtol=1e-14, atol=0)


def _fill(model: nn.Module) -> None:
    """Weights that do not depend on the random generator."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.arange(p.numel(), dtype=p.dtype).cos().view_as(p) / p.numel() ** 0.5)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("route", ["materialised", "kernel", "pairwise"])
def test_gradients_lie_in_memory_as_their_weights_do(route, memory):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 3, 3), nn.Flatten()).to(memory_format=memory)
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=1, gram_route=route)
    for _ in ("derive", "share"):
        optimizer.zero_grad()
        model(torch.randn(5, 1, 7, 7)).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad.stride() == parameter.stride()
        optimizer.step()
