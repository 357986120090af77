"""BatchNorm ties the samples of a batch together: u_m is the sample's summand of the batch gradient."""

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
    parts = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3)]
    return nn.Sequential(*parts, nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 4)).double()


@pytest.mark.parametrize("name", ["0", "3", "6"])
def test_the_gradient_weights_the_summands_of_the_batch_gradient(name):
    model = network()
    x, y = torch.randn(6, 2, 5, 5, dtype=torch.float64), torch.randint(4, (6,))
    oracle, plain = copy.deepcopy(model), copy.deepcopy(model)
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    cross_entropy(model(x), y).backward()
    cross_entropy(plain(x), y).backward()
    U = reference.copies(oracle, oracle.get_submodule(name), cross_entropy, [x], y)
    sums = reference.flat([p.grad for p in plain.get_submodule(name).parameters()])
    assert relative_error(U.mean(1), sums) <= 1e-12
    expected = U @ reference.coefficients(U, reference.damping(U, 0.005)) / 6
    got = reference.flat([p.grad for p in model.get_submodule(name).parameters()])
    assert relative_error(got, expected) <= 1e-10


def test_norm_layers_take_the_plain_gradient():
    model = network()
    x, y = torch.randn(6, 2, 5, 5, dtype=torch.float64), torch.randint(4, (6,))
    plain = copy.deepcopy(model)
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    cross_entropy(model(x), y).backward()
    cross_entropy(plain(x), y).backward()
    for name in ("1", "4"):
        for mine, theirs in zip(
            model.get_submodule(name).parameters(), plain.get_submodule(name).parameters(), strict=True
        ):
            assert relative_error(mine.grad, theirs.grad) <= 1e-13
