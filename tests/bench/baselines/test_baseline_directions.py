"""Directions equal dense solves, and the update is SGD's on them."""

import baseline_oracle as oracle
import pytest
import torch
from baseline_cases import METHODS, differentiate, images
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fngd_bench.baselines.eva import sherman_morrison
from fngd_bench.baselines.kfac import _inverse, damped_inverses
from fngd_bench.baselines.rescale import clip_factor
from reference import relative_error

small = st.integers(1, 6)
dampings = st.sampled_from([1e-3, 0.03, 1.0, 30.0])
DENSE = {"kfac": oracle.dense_kfac, "eva": oracle.dense_eva}


def factor(size, samples):
    rows = torch.randn(size, samples, dtype=torch.float64)
    return rows @ rows.T / samples


def kfac_direction(gradient, A, G, damping):
    inverse_A, inverse_G = damped_inverses(A, G, damping)
    return inverse_G @ gradient @ inverse_A


@settings(max_examples=60, deadline=None)
@given(small, small, small, dampings)
def test_kfacs_direction_is_the_dense_kronecker_solve(d_in, d_out, samples, damping):
    torch.manual_seed(0)
    gradient = torch.randn(d_out, d_in, dtype=torch.float64)
    A, G = factor(d_in, samples), factor(d_out, samples)
    actual = kfac_direction(gradient, A, G, damping)
    assert relative_error(actual, oracle.dense_kfac(gradient, A, G, damping)) <= 1e-9


@settings(max_examples=60, deadline=None)
@given(small, small, dampings)
def test_evas_direction_is_the_dense_solve(d_in, d_out, damping):
    torch.manual_seed(0)
    gradient = torch.randn(d_out, d_in, dtype=torch.float64)
    a, g = torch.randn(d_in, dtype=torch.float64), torch.randn(d_out, dtype=torch.float64)
    actual = sherman_morrison(gradient, a, g, damping)
    assert relative_error(actual, oracle.dense_eva(gradient, a, g, damping)) <= 1e-9


@settings(max_examples=20, deadline=None)
@given(small, small, st.sampled_from([1e-3, 0.5, 64.0]))
def test_kfacs_direction_ignores_how_scale_is_split_between_the_factors(d_in, d_out, scale):
    torch.manual_seed(0)
    gradient = torch.randn(d_out, d_in, dtype=torch.float64)
    A, G = factor(d_in, 3), factor(d_out, 3)
    expected = kfac_direction(gradient, A, G, 0.01)
    assert relative_error(kfac_direction(gradient, A * scale, G / scale, 0.01), expected) <= 1e-9


def test_a_factor_of_zeros_is_damped_like_any_other():
    zero, unit = torch.zeros(3, 3), torch.eye(2)
    inverse_A, inverse_G = damped_inverses(zero, unit, 0.25)
    assert torch.equal(inverse_A, 2 * torch.eye(3))
    assert torch.allclose(inverse_G, unit / 1.5)


@pytest.mark.parametrize("scale", [1e-12, 1.0])
def test_factors_of_very_low_rank_are_inverted_in_float32(scale):
    """Undamped, LAPACK's float32 eigendecomposition fails on a few of these, by an error or by NaN."""
    for seed in range(60):
        torch.manual_seed(seed)
        rows = torch.randn((17, 65, 145)[seed % 3], 1).relu()
        A, G = scale * rows @ rows.T, torch.eye(2)
        inverse, _ = damped_inverses(A, G, 1e-2)
        damping = 0.1 * (A.trace().item() / len(A)) ** 0.5
        dense = torch.linalg.inv(A.double() + damping * torch.eye(len(A), dtype=torch.float64))
        assert relative_error(inverse, dense) <= 1e-3


@pytest.mark.parametrize("failure", ["error", "nan"])
def test_a_failed_eigendecomposition_is_done_again_in_float64(failure, monkeypatch):
    works, A = torch.linalg.eigh, factor(4, 2).float()

    def fails(matrix):
        if matrix.dtype == torch.float64:
            return works(matrix)
        if failure == "error":
            raise torch.linalg.LinAlgError("no convergence")
        return tuple(part * float("nan") for part in works(matrix))

    expected = damped_inverses(A, A, 0.1)
    monkeypatch.setattr(torch.linalg, "eigh", fails)
    actual = damped_inverses(A, A, 0.1)
    assert all(
        a.dtype == torch.float32 and torch.allclose(a, e, rtol=1e-4) for a, e in zip(actual, expected, strict=True)
    )


def batch(size=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 2, 6, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (size,), generator=generator)


def whole_direction(method, optimizer, damping):
    """The dense solve for each layer, from the states and the gradients of the optimizer's model, by parameter name."""
    directions = {name: p.grad.clone() for name, p in optimizer.model.named_parameters()}
    for name, state in optimizer.states.items():
        module = optimizer.model.get_submodule(name)
        gradient = module.weight.grad.flatten(1)
        if module.bias is not None:
            gradient = torch.cat((gradient, module.bias.grad.unsqueeze(1)), 1)
        solved = DENSE[method](gradient, state.inputs, state.outputs, damping)
        directions[f"{name}.weight"] = solved[:, : module.weight[0].numel()].reshape(module.weight.shape)
        if module.bias is not None:
            directions[f"{name}.bias"] = solved[:, -1]
    return directions


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("kl_clip", [1e-3, float("inf")])
@pytest.mark.parametrize("method", METHODS)
def test_a_step_is_sgds_on_the_clipped_dense_direction(method, kl_clip, memory_format):
    lr, momentum, weight_decay, damping = 0.2, 0.9, 1e-2, 0.05
    model = images(torch.float64).to(memory_format=memory_format)
    x, y = batch()
    optimizer = METHODS[method](
        model, lr=lr, momentum=momentum, weight_decay=weight_decay, damping=damping, kl_clip=kl_clip
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    differentiate(model, x.to(memory_format=memory_format), y)
    optimizer.step()
    directions = whole_direction(method, optimizer, damping)
    layers = {f"{layer}.{key}" for layer in optimizer.preconditioned for key in ("weight", "bias")} & set(before)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    total = lr**2 * sum((directions[name] * gradients[name]).sum() for name in layers).item()
    nu = min(1.0, (kl_clip / total) ** 0.5)
    assert (nu < 1) == (kl_clip < 1)
    for name, p in model.named_parameters():
        v = directions[name] * nu if name in layers else directions[name]
        expected = before[name] - lr * (v + weight_decay * before[name])
        assert relative_error(p.detach(), expected) <= 1e-10


def test_kfac_goes_on_with_its_inverses_until_it_is_time():
    model = nn.Linear(4, 3).double()
    optimizer = METHODS["kfac"](model, lr=0.01, statistics_every=2, inverse_every=4)
    seen = []
    for seed in range(9):
        torch.manual_seed(seed)
        optimizer.zero_grad()
        model(torch.randn(5, 4, dtype=torch.float64)).square().sum(1).mean().backward()
        optimizer.step()
        state = optimizer.states[""]
        seen.append((state.batches, state.prepared[0]))
    assert [batches for batches, _ in seen] == [1, 1, 2, 2, 3, 3, 4, 4, 5]
    changed = [not torch.equal(seen[k][1], seen[k - 1][1]) for k in range(1, 9)]
    assert changed == [False, False, False, True, False, False, False, True]


def test_eva_measures_every_step():
    model = nn.Linear(4, 3)
    optimizer = METHODS["eva"](model, lr=0.01)
    for steps in range(1, 4):
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
        assert optimizer.states[""].batches == steps


@pytest.mark.parametrize(
    ("products", "expected"), [([4.0], 0.5), ([-3.0, 1.0], 0.5), ([0.25], 1.0), ([0.0], 1.0), ([0.0, 16.0], 0.25)]
)
def test_the_kl_clip_is_the_formula(products, expected):
    assert clip_factor([torch.tensor(p) for p in products], 1.0).item() == expected


@pytest.mark.parametrize("method", METHODS)
def test_the_kl_clip_uses_each_groups_learning_rate(method):
    model = images(torch.float64)
    groups = [{"params": model[0].parameters(), "lr": 0.4}, {"params": [*model[3:].parameters()]}]
    optimizer = METHODS[method](model, groups, lr=0.1, momentum=0.0, kl_clip=1e-5, damping=0.05)
    differentiate(model, *batch())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.step()
    rates = {"0.weight": 0.4, "0.bias": 0.4, "3.weight": 0.1, "6.weight": 0.1, "6.bias": 0.1}
    directions = whole_direction(method, optimizer, 0.05)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    total = sum(rates[name] ** 2 * (directions[name] * gradients[name]).sum() for name in rates).item()
    for name, p in model.named_parameters():
        expected = before[name] - rates.get(name, 0.0) * (1e-5 / total) ** 0.5 * directions[name]
        assert relative_error(p.detach(), expected) <= 1e-10


def test_a_factor_of_low_rank_that_defeats_lapack_is_inverted_all_the_same():
    torch.manual_seed(0)
    x = torch.zeros(16, 288)
    x[:, ::9] = torch.randn(16, 32).relu()  # one pixel under a padded 3×3 kernel: eight of nine columns are zero
    A = x.t() @ x / 16
    inverse = _inverse(A, 0.02)
    dense = torch.linalg.inv(A.double() + 0.02 * torch.eye(288, dtype=torch.float64))
    assert relative_error(inverse, dense) < 1e-4
