"""The solve, the damping rule, the measures and the running mean, each against its definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from fngd.coefficients import History, coefficients, damping, measure
from fngd.policies import Constant, Fresh, Refreshed, Shared
from reference import relative_error


def drawn(N, M):
    return torch.randn(N, M, dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.floats(1e-4, 10.0))
def test_coefficients_are_those_of_the_paper(N, M, alpha):
    U = drawn(N, M)
    K = reference.gram(U)
    lam = damping(K, alpha)
    assert relative_error(lam, reference.damping(U, alpha)) <= 1e-14
    c = coefficients(K, lam, torch.ones(M, dtype=torch.float64))
    assert relative_error(c, reference.coefficients(U, lam)) <= 1e-10
    assert relative_error(U @ c / (lam * M), reference.natural_gradient(U, lam)) <= 1e-9


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12))
def test_any_right_hand_side_is_solved(M):
    K, rhs = reference.gram(drawn(20, M)), torch.randn(M, dtype=torch.float64)
    lam = damping(K, 0.01)
    A = torch.eye(M, dtype=torch.float64) + K / (lam * M)
    assert relative_error(A @ coefficients(K, lam, rhs), rhs) <= 1e-10


@pytest.mark.parametrize("alpha", [1e-4, 0.005, 1.0])
def test_float32_is_enough_under_the_damping_rule(alpha):
    """The condition number is at most 1 + 1/(αM): 79 here at worst, times the 6e-8 of float32."""
    K = reference.gram(drawn(40, 128) + 3)
    exact = coefficients(K, damping(K, alpha), torch.ones(128, dtype=torch.float64))
    rough = coefficients(K.float(), damping(K.float(), alpha), torch.ones(128))
    assert relative_error(rough.double(), exact) <= 1e-5


def test_zero_gradients_have_coefficients_one():
    K = torch.zeros(3, 3)
    assert torch.equal(coefficients(K, damping(K, 0.005), torch.ones(3)), torch.ones(3))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_gram_matrix_that_is_not_finite_gives_no_finite_coefficients(bad):
    K = torch.eye(3)
    K[1, 2] = bad
    assert not coefficients(K, damping(K, 0.005), torch.ones(3)).isfinite().all()


def test_measures_are_what_they_say():
    U = drawn(30, 6)
    K = reference.gram(U)
    lam = damping(K, 0.01)
    c = coefficients(K, lam, torch.ones(6, dtype=torch.float64))
    got = measure(K, c, lam)
    weighted, plain = U @ c, U.sum(1)
    eigenvalues = torch.linalg.eigvalsh(K)
    assert relative_error(got.mean, c.mean()) <= 1e-14
    assert relative_error(got.spread, (c - c.mean()).square().mean().sqrt()) <= 1e-12
    assert relative_error(got.effective_rank, eigenvalues.sum() ** 2 / eigenvalues.square().sum()) <= 1e-12
    assert relative_error(got.cosine, torch.cosine_similarity(weighted, plain, 0)) <= 1e-12


def history(batches, policy, valid=None):
    kept = History()
    for index, c in enumerate(batches):
        K = torch.eye(len(c), dtype=c.dtype)
        kept.add(c, measure(K, c, torch.ones(())), torch.tensor(valid is None or valid[index]), policy.weight)
    return kept


@pytest.mark.parametrize("policy", [Shared(3), Constant(3), Fresh()], ids=str)
def test_the_running_mean_is_the_mean_of_the_batches(policy):
    batches = list(torch.rand(7, 4, dtype=torch.float64))
    assert relative_error(history(batches, policy).mean, torch.stack(batches).mean(0)) <= 1e-14


def test_a_refreshed_mean_forgets():
    batches = list(torch.rand(9, 4, dtype=torch.float64))
    expected = torch.stack(batches[:4]).mean(0)
    for c in batches[4:]:
        expected = 0.75 * expected + 0.25 * c
    assert relative_error(history(batches, Refreshed(2, 0.75)).mean, expected) <= 1e-14


def test_an_invalid_batch_changes_nothing_but_its_count():
    batches = list(torch.rand(4, 3, dtype=torch.float64))
    kept = history(batches, Shared(4), valid=[True, False, True, False])
    assert relative_error(kept.mean, (batches[0] + batches[2]) / 2) <= 1e-14
    assert (kept.batches, kept.skipped) == (2, 2)
    assert relative_error(kept.measures.mean, (batches[0].mean() + batches[2].mean()) / 2) <= 1e-14


def test_a_shorter_batch_does_not_enter_the_mean_and_a_longer_one_starts_it_anew():
    short, long, longer = torch.rand(2), torch.rand(4), torch.rand(6)
    assert torch.equal(history([long, short], Shared(2)).mean, long)
    assert torch.equal(history([long, longer], Shared(2)).mean, longer)
    assert torch.equal(history([short, long, short], Shared(2)).mean, long)


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        (Shared(3), [0, 1, 2]),
        (Constant(2), [0, 1]),
        (Fresh(), list(range(8))),
        (Refreshed(3, 0.9), [0, 3, 6]),
    ],
    ids=str,
)
def test_a_policy_derives_at_the_steps_it_says(policy, steps):
    assert [step for step in range(8) if policy.derives(step)] == steps


def test_the_constant_policy_shares_one_number():
    mean = torch.rand(5)
    assert torch.equal(Constant(1).share(mean), mean.mean(0, keepdim=True))
    assert torch.equal(Shared(1).share(mean), mean)
