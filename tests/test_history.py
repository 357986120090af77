"""Measures and the running mean against their definitions, for one layer and for many layers at once."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from fngd.coefficients import Solution, solve
from fngd.history import History, Report, measure, report, settle
from fngd.policies import Constant, Fresh, Refreshed, Shared
from reference import relative_error

YES, ONE = torch.ones((), dtype=torch.bool), torch.ones((), dtype=torch.float64)


def reported(c, valid=YES):
    """A batch with these coefficients and samples that have nothing in common."""
    K = torch.eye(len(c), dtype=c.dtype)
    return report(K, Solution(c, valid, torch.linalg.matrix_norm(K), ONE), ONE)


def history(batches, policy, valid=None):
    kept = History()
    for index, c in enumerate(batches):
        settle([(kept, reported(c, torch.tensor(valid is None or valid[index])))], policy.weight)
    return kept


def test_measures_are_what_they_say():
    U = torch.randn(30, 6, dtype=torch.float64)
    K, unit = reference.gram(U), torch.tensor(0.25, dtype=torch.float64)
    c, _, _, lam = solution = solve(K, torch.ones(6, dtype=torch.float64), 0.01)
    got = measure(report(K, solution, unit))
    weighted, plain = U @ c, U.sum(1)
    eigenvalues = torch.linalg.eigvalsh(K)
    assert relative_error(got.mean, c.mean()) <= 1e-14
    assert relative_error(got.spread, (c - c.mean()).square().mean().sqrt()) <= 1e-12
    assert relative_error(got.damping, torch.tensor(lam / 16, dtype=torch.float64)) <= 1e-14
    assert relative_error(got.effective_rank, eigenvalues.sum() ** 2 / eigenvalues.square().sum()) <= 1e-12
    assert relative_error(got.cosine, torch.cosine_similarity(weighted, plain, 0)) <= 1e-12


def test_gradients_of_zero_have_no_direction_and_no_rank():
    kept, zero = History(), torch.zeros(4, 4)
    settle([(kept, report(zero, solve(zero, torch.ones(4), 0.01), ONE))], Fresh().weight)
    settle([(kept, reported(torch.ones(4)))], Fresh().weight)
    assert kept.counted.tolist() == [2, 2, 2, 1, 1]
    assert kept.measures.effective_rank == 4
    assert kept.measures.cosine == 1


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


def test_an_invalid_first_batch_leaves_nothing_to_share():
    kept = history([torch.ones(3)], Shared(4), valid=[False])
    assert kept.mean is None
    assert (kept.batches, kept.skipped) == (0, 1)


def test_a_shorter_batch_does_not_enter_the_mean_and_a_longer_one_starts_it_anew():
    short, long, longer = torch.rand(2), torch.rand(4), torch.rand(6)
    assert torch.equal(history([long, short], Shared(2)).mean, long)
    assert torch.equal(history([long, longer], Shared(2)).mean, longer)
    assert torch.equal(history([short, long, short], Shared(2)).mean, long)


drawn_batches = st.lists(
    st.tuples(st.sampled_from([2, 4, 5]), st.sampled_from([torch.float32, torch.float64]), st.booleans()),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(drawn_batches, min_size=1, max_size=4), st.sampled_from([Shared(3), Refreshed(2, 0.5)]))
def test_many_layers_and_steps_at_once_are_each_alone_to_the_bit(layers, policy):
    """Layers differ in the length, the dtype and the validity of their batches, and in how many they have seen."""

    def drawn(size, dtype, valid):
        U = torch.randn(9, size, dtype=dtype)
        K = U.T @ U
        return report(K, solve(K, torch.ones(size, dtype=dtype), 0.01)._replace(valid=torch.tensor(valid)), ONE)

    batches = [[drawn(size, layer[0][1], valid) for size, _, valid in layer] for layer in layers]
    together, alone = [History() for _ in layers], [History() for _ in layers]
    for step in range(max(map(len, batches))):
        settle(
            [(kept, own[step]) for kept, own in zip(together, batches, strict=True) if step < len(own)], policy.weight
        )
    for kept, own in zip(alone, batches, strict=True):
        for batch in own:
            settle([(kept, batch)], policy.weight)
    late = [History() for _ in layers]
    settle([(kept, batch) for kept, own in zip(late, batches, strict=True) for batch in own], policy.weight)
    for one, *others in zip(alone, together, late, strict=True):
        for field in dataclasses.fields(History):
            a, *same = (getattr(kept, field.name) for kept in (one, *others))
            for b in same:
                assert (a is None) == (b is None)
                assert a is None or (a.dtype == b.dtype and torch.equal(a, b)), field.name


def test_a_report_holds_no_matrix():
    """Every layer's is kept for some steps."""
    assert max(value.dim() for value in reported(torch.ones(5))) == 1
    assert Report._fields[0] == "c"
