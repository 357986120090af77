"""The Gram matrices one can look at are those of the oracle, and looking leaves no trace."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fngd
import reference
from reference import relative_error


def start():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 3)).double()
    return model, torch.randn(6, 5, dtype=torch.float64), torch.arange(6) % 3


def test_gram_matrices_are_the_oracles_divided_by_their_norm():
    model, x, y = start()
    found = fngd.gram_matrices(model, lambda copy: cross_entropy(copy(x), y))
    assert list(found) == ["0", "3"]
    for name, K in found.items():
        layer = model.get_submodule(name)
        expected = reference.gram(reference.alone(model, cross_entropy, [x], y, list(layer.parameters())))
        assert relative_error(K, expected / torch.linalg.matrix_norm(expected)) < 1e-12


def test_looking_leaves_the_model_its_optimizer_and_the_random_numbers_alone():
    model, x, y = start()
    model[2].p = 0.5
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=2)
    weights, numbers = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    fngd.gram_matrices(model, lambda copy: cross_entropy(copy(x), y))
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert optimizer.phase == "derive"
    assert optimizer.coefficients == {}


def test_a_watcher_sees_each_deriving_step_and_no_other():
    model, x, y = start()
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=2)
    seen = []
    optimizer.preconditioner.watch(lambda name, K: seen.append((name, K.shape)))
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert seen == [("3", (6, 6)), ("0", (6, 6))] * 2
