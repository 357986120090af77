"""Bad input as data: each ends in an error that gives name, value, rule and way out."""

import pytest
import torch
from baseline_cases import METHODS, make, network, step
from torch import nn

from fngd_bench.errors import InputError

BAD = [
    ({"lr": -0.1}, r"lr=-0\.1 must be a finite number, 0 or above"),
    ({"lr": float("nan")}, r"lr=nan must be"),
    ({"lr": "fast"}, r"lr='fast' must be"),
    ({"lr": torch.ones(2)}, r"lr=tensor.* must be"),
    ({"momentum": -0.9}, r"momentum=-0\.9 must be"),
    ({"momentum": float("inf")}, r"momentum=inf must be"),
    ({"weight_decay": -1e-4}, r"weight_decay=-0\.0001 must be"),
    ({"damping": 0.0}, r"damping=0\.0 must be a finite number above 0"),
    ({"damping": float("inf")}, r"damping=inf must be"),
    ({"damping": True}, r"damping=True must be"),
    ({"decay": 1.0}, r"decay=1\.0 must be at least 0 and below 1: it weights the old running average"),
    ({"decay": -0.1}, r"decay=-0\.1 must be"),
    ({"decay": None}, r"decay=None must be"),
    ({"kl_clip": 0}, r"kl_clip=0 must be above 0; float\('inf'\)"),
    ({"kl_clip": float("nan")}, r"kl_clip=nan must be"),
]
BAD_PERIODS = [
    ({"statistics_every": 0}, r"statistics_every=0 must be a whole number of steps, at least 1"),
    ({"statistics_every": 2.5}, r"statistics_every=2\.5 must be"),
    ({"inverse_every": -1}, r"inverse_every=-1 must be a whole number of steps"),
    ({"inverse_every": True}, r"inverse_every=True must be"),
]
ROWS = [(method, *row) for method in METHODS for row in BAD] + [("kfac", *row) for row in BAD_PERIODS]


@pytest.mark.parametrize(("method", "arguments", "message"), ROWS, ids=[f"{m} {a}" for m, a, _ in ROWS])
def test_a_hyperparameter_out_of_range_is_refused_by_name(method, arguments, message):
    model = nn.Linear(3, 2)
    with pytest.raises(InputError, match=message):
        make(method, model, **arguments)
    assert not model._forward_hooks


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: nn.BatchNorm1d(3),
            r"model=BatchNorm1d has no layer to precondition \(the model: BatchNorm1d is neither",
        ),
        (lambda: nn.Linear(3, 2).requires_grad_(requires_grad=False), r"model=Linear has no layer.*nothing is trained"),
        (lambda: nn.Conv2d(4, 4, 3, groups=4), r"groups=4: a grouped convolution"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), r"ParametrizedLinear is neither"),
    ],
)
def test_a_model_without_a_layer_to_precondition_is_refused(method, build, message):
    with pytest.raises(InputError, match=message):
        make(method, build())


@pytest.mark.parametrize("method", METHODS)
def test_parameters_in_place_of_the_model_are_refused(method):
    with pytest.raises(InputError, match=r"model=generator must be a torch\.nn\.Module"):
        make(method, network().parameters())


@pytest.mark.parametrize("method", METHODS)
def test_a_state_of_another_optimizer_is_refused(method):
    optimizer = make(method, network())
    other = make(next(name for name in METHODS if name != method), network())
    for state in (torch.optim.SGD(network().parameters()).state_dict(), other.state_dict()):
        with pytest.raises(InputError, match=r"no entry 'preconditioner' of method .*saved by another optimizer"):
            optimizer.load_state_dict(state)


@pytest.mark.parametrize("method", METHODS)
def test_a_state_of_another_model_is_refused_and_changes_nothing(method):
    model = network()
    optimizer = make(method, model)
    step(model, optimizer)
    saved = optimizer.state_dict()
    wider = make(method, nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    with pytest.raises(InputError, match=r"layer '0' is for a gradient of shape \(8, 6\), but it has \(8, 7\)"):
        wider.load_state_dict(saved)
    renamed = make(method, nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3)))
    with pytest.raises(InputError, match=r"a layer '2' that is not preconditioned here \(0, 1 are\)"):
        renamed.load_state_dict(saved)
    assert wider.states == renamed.states == {}
    assert wider.steps == renamed.steps == 0
