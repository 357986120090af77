"""The solve and the damping rule against their definitions, and the policies' answers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from fngd.coefficients import factorised, iterated, richardson_steps, solve
from fngd.policies import Constant, Fresh, Refreshed, Shared
from reference import relative_error


def drawn(N, M):
    return torch.randn(N, M, dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.floats(1e-4, 10.0))
def test_coefficients_are_those_of_the_paper(N, M, alpha):
    U = drawn(N, M)
    K = reference.gram(U)
    c, valid, norm, lam = solve(K, torch.ones(M, dtype=torch.float64), alpha)
    assert valid
    assert relative_error(torch.tensor(norm, dtype=torch.float64), torch.linalg.matrix_norm(K)) <= 1e-14
    assert relative_error(torch.tensor(lam, dtype=torch.float64), reference.damping(U, alpha)) <= 1e-14
    assert relative_error(c, reference.coefficients(U, lam)) <= 1e-10
    assert relative_error(U @ c / (lam * M), reference.natural_gradient(U, lam)) <= 1e-9


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12))
def test_any_right_hand_side_is_solved(M):
    K, rhs = reference.gram(drawn(20, M)), torch.randn(M, dtype=torch.float64)
    lam = 0.01 * torch.linalg.matrix_norm(K)
    A = torch.eye(M, dtype=torch.float64) + K / (lam * M)
    assert relative_error(A @ solve(K, rhs, 0.01).c, rhs) <= 1e-10
    assert torch.equal(solve(K, rhs, 1.0, lam).c, solve(K, rhs, 0.01).c)  # a damping that is given replaces the rule


@pytest.mark.parametrize("alpha", [1e-4, 0.005, 1.0])
def test_float32_is_enough_under_the_damping_rule(alpha):
    """The condition number is at most 1 + 1/(αM): 79 here at worst, times the 6e-8 of float32."""
    K = reference.gram(drawn(40, 128) + 3)
    exact = solve(K, torch.ones(128, dtype=torch.float64), alpha)
    rough = solve(K.float(), torch.ones(128), alpha)
    assert relative_error(rough.c.double(), exact.c) <= 1e-5


@settings(max_examples=40, deadline=None)
@given(st.integers(200, 500), st.integers(1, 600), st.floats(0.005, 10.0), st.booleans())
def test_the_iteration_solves_what_the_factorisation_solves(M, N, alpha, alike):
    """A few samples that pull the same way, and so put an eigenvalue at the bound, and any others."""
    K, rhs = reference.gram(drawn(N, M) + 30 * alike), torch.randn(M, dtype=torch.float64)
    divisor = alpha * torch.linalg.matrix_norm(K) * M
    S = K / divisor
    steps = richardson_steps(M, alpha, K.dtype)
    assert steps is not None
    exact = torch.linalg.solve(torch.eye(M, dtype=torch.float64) + S, rhs)
    for number in (divisor, divisor.item()):  # elsewhere than on a CPU it is a tensor that nobody waits for
        assert relative_error(iterated(K, number, rhs, steps), exact) <= 1e-14
    assert relative_error(solve(K, rhs, alpha).c, exact) <= 1e-14
    found, there_is_one = factorised(S.clone(), rhs)
    assert there_is_one
    assert relative_error(found, exact) <= 1e-14


@pytest.mark.parametrize(("M", "needed"), [(128, 12), (200, 10), (512, 7)])
def test_in_float32_the_iteration_is_as_exact_as_a_factorisation(M, needed):
    K, rhs = reference.gram(drawn(40, M) + 3), torch.ones(M, dtype=torch.float64)
    S = K / (0.005 * torch.linalg.matrix_norm(K) * M)
    exact = torch.linalg.solve(torch.eye(M, dtype=torch.float64) + S, rhs)
    steps = richardson_steps(M, 0.005, torch.float32)
    assert steps is not None
    assert len(steps) == needed
    assert relative_error(iterated(S.float(), 1.0, rhs.float(), steps).double(), exact) <= 3e-7
    assert relative_error(factorised(S.float(), rhs.float())[0].double(), exact) <= 1e-6


@pytest.mark.parametrize(("M", "alpha"), [(1, 0.005), (64, 0.005), (128, 1e-30), (128, 1e-320), (16, 0.05)])
def test_few_samples_and_little_damping_are_factorised(M, alpha):
    assert richardson_steps(M, alpha, torch.float32) is None


@pytest.mark.parametrize("alpha", [0.005, 1e300])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_the_iteration_too_leaves_the_right_hand_side_where_the_matrix_is_not_finite(bad, alpha):
    K, rhs = torch.eye(256), torch.rand(256)
    assert richardson_steps(256, alpha, K.dtype) is not None
    assert relative_error(solve(0 * K, rhs, alpha).c, rhs) <= 2e-7
    K[3, 100] = bad
    solution = solve(K, rhs, alpha)
    assert not solution.valid
    assert torch.equal(solution.c, rhs)


def test_zero_gradients_have_coefficients_one():
    solution = solve(torch.zeros(3, 3), torch.ones(3), 0.005)
    assert solution.valid
    assert torch.equal(solution.c, torch.ones(3))


@pytest.mark.parametrize("place", [(1, 2), (2, 1), (0, 0)])
@pytest.mark.parametrize("given", [None, 0.1])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_gram_matrix_that_is_not_finite_is_not_valid_and_leaves_the_right_hand_side(bad, given, place):
    K, rhs = torch.eye(3), torch.tensor([1.0, 2.0, 3.0])
    K[place] = bad
    solution = solve(K, rhs, 0.005, None if given is None else torch.tensor(given))
    assert not solution.valid
    assert torch.equal(solution.c, rhs)


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
