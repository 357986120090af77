"""KFAC's A ⊗ G equals that of curvlinops, a package of its own, for the empirical Fisher matrix.

curvlinops has 1/T in its A and none in its G, KFAC here the other way round: each factor is equal up to T, and the
products are equal as they are.
"""

import warnings

import pytest
import torch
from torch import nn

from fngd_bench.baselines import KFAC
from reference import relative_error

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # linear_operator, which it imports, still scripts a function
    import curvlinops

MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, 3)), (4,)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(2, 3)
        ),
        (2, 4, 3),
    ),
}


def product(optimizer, vector):
    """A ⊗ G of all layers times a vector of all parameters, in the model's order."""
    parts = vector.split([p.numel() for p in optimizer.model.parameters()])
    by_name = dict(zip([name for name, _ in optimizer.model.named_parameters()], parts, strict=True))
    pieces = []
    for name in optimizer.preconditioned:
        state = optimizer.states[name]
        weight, bias = by_name[f"{name}.weight"], by_name[f"{name}.bias"]
        matrix = torch.cat((weight.view(len(bias), -1), bias.unsqueeze(1)), 1)
        result = state.outputs @ matrix @ state.inputs
        pieces += [result[:, :-1].flatten(), result[:, -1]]
    return torch.cat(pieces)


@pytest.mark.parametrize("name", MODELS)
def test_the_kronecker_products_are_those_of_curvlinops(name):
    build, shape = MODELS[name]
    model = build().double()
    x, y = torch.randn(7, *shape, dtype=torch.float64), torch.randint(3, (7,))
    loss = nn.CrossEntropyLoss()
    operator = curvlinops.KFACLinearOperator(
        model,
        loss,
        list(model.parameters()),
        [(x, y)],
        fisher_type="empirical",
        kfac_approx="expand",
        separate_weight_and_bias=False,
    )
    optimizer = KFAC(model, lr=0.0)
    loss(model(x), y).backward()
    optimizer.step()
    unit = torch.eye(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    expected = operator @ unit
    actual = torch.stack([product(optimizer, column) for column in unit], 1)
    assert relative_error(actual, expected) <= 1e-10
