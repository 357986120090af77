"""What single rows of the table are made of: each against an oracle of its own."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import fngd
from fngd_bench import models, optimizers
from fngd_bench.composite import Composite, preconditioner
from fngd_bench.errors import InputError
from fngd_bench.optimizers import METHODS, Range
from fngd_bench.optimizers.muon import MatrixMuon, hidden
from fngd_bench.optimizers.packaged import AdaHessian
from fngd_bench.optimizers.shampoo import Shampoo

SHAMPOO = {"momentum": 0.9, "weight_decay": 0.0, "damping": 1e-6, "decay": 0.9, "largest": 64}


def gradients(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter)


def test_matrices_take_torchs_own_muon_step():
    model = nn.Linear(5, 7, bias=False)
    twin = copy.deepcopy(model)
    ours = MatrixMuon(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
    torchs = torch.optim.Muon(
        twin.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for seed in range(3):
        gradients(model, seed)
        gradients(twin, seed)
        ours.step()
        torchs.step()
    assert torch.equal(model.weight, twin.weight)


def test_a_convolution_takes_the_muon_step_of_its_matrix():
    model = nn.Conv2d(3, 4, 3, bias=False)
    matrix = nn.Parameter(model.weight.detach().flatten(1).clone())
    ours = MatrixMuon(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
    torchs = torch.optim.Muon([matrix], lr=0.01, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    gradients(model)
    matrix.grad = model.weight.grad.flatten(1).clone()
    ours.step()
    torchs.step()
    assert torch.equal(model.weight.flatten(1), matrix)


def test_channels_last_weights_take_the_same_muon_step_but_for_rounding():
    model = nn.Conv2d(3, 4, 3, bias=False)
    twin = copy.deepcopy(model).to(memory_format=torch.channels_last)
    start = model.weight.detach().clone()
    for each in (model, twin):
        optimizer = MatrixMuon(each.parameters(), lr=0.01, momentum=0.9, weight_decay=0.0)
        gradients(each)
        optimizer.step()
    assert twin.weight.is_contiguous(memory_format=torch.channels_last)
    way = (model.weight - start).norm()
    assert (model.weight - twin.weight).norm() <= 0.05 * way  # the iteration rounds to 8 bits, in another order


def test_muon_leaves_embeddings_and_the_output_to_adamw():
    model = nn.ModuleDict({"words": nn.Embedding(9, 4), "hidden": nn.Linear(4, 4), "output": nn.Linear(4, 9)})
    assert [id(weight) for weight in hidden(model)] == [id(model["hidden"].weight)]
    optimizer = optimizers.make(METHODS["muon"], model, optimizers.resolve(METHODS["muon"], "images", {}), 1)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 4]


def test_muon_takes_the_convolutions_of_a_network_but_not_its_output():
    model = models.build("small-cnn")
    assert [weight.dim() for weight in hidden(model)] == [4, 4, 4]


def test_a_composite_takes_no_group_later_on():
    model = nn.Linear(3, 3)
    optimizer = Composite([torch.optim.SGD([model.weight], lr=0.1), torch.optim.Adam([model.bias], lr=0.1)])
    with pytest.raises(ValueError, match="param_group"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def test_a_composite_steps_as_its_parts_do_alone():
    model = nn.Linear(3, 3)
    twin = copy.deepcopy(model)
    optimizer = Composite([torch.optim.SGD([model.weight], lr=0.1), torch.optim.Adam([model.bias], lr=0.1)])
    alone = [torch.optim.SGD([twin.weight], lr=0.1), torch.optim.Adam([twin.bias], lr=0.1)]
    for seed in range(3):
        gradients(model, seed)
        gradients(twin, seed)
        optimizer.step()
        for part in alone:
            part.step()
    assert torch.equal(model.weight, twin.weight)
    assert torch.equal(model.bias, twin.bias)


def test_natural_gradients_under_adamw_are_those_of_fngd():
    def network():
        torch.manual_seed(0)
        return nn.Linear(4, 3)

    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    found = []
    for name in ("ngd", "fngd-adamw"):
        model = network()
        optimizer = optimizers.make(METHODS[name], model, optimizers.resolve(METHODS[name], "images", {}), 5)
        cross_entropy(model(x), y).backward()
        found.append(model.weight.grad)
        assert preconditioner(optimizer).phase == "derive"
    assert torch.equal(*found)


def test_a_state_without_coefficients_is_refused():
    model = nn.Linear(4, 3)
    optimizer = optimizers.make(
        METHODS["fngd-adamw"], model, optimizers.resolve(METHODS["fngd-adamw"], "images", {}), 5
    )
    with pytest.raises(ValueError, match="natural_gradient"):
        optimizer.load_state_dict(torch.optim.AdamW(model.parameters()).state_dict())


def test_only_natural_gradients_have_a_preconditioner():
    for name, row in METHODS.items():
        optimizer = optimizers.make(row, models.build("small-cnn"), optimizers.resolve(row, "images", {}), 5)
        natural = name == "ngd" or name.startswith("fngd")
        assert isinstance(preconditioner(optimizer), fngd.NaturalGradient) == natural


@pytest.mark.parametrize(("epochs", "steps"), [(1.0, 7), (0.5, 4), (0.01, 1), (2.0, 14)])
def test_fngd_derives_for_the_epochs_it_is_told(epochs, steps):
    model = nn.Linear(4, 3)
    recipe = optimizers.resolve(METHODS["fngd"], "images", {"derive_epochs": epochs})
    optimizer = optimizers.make(METHODS["fngd"], model, recipe, 7)
    for _ in range(steps):
        assert optimizer.phase == "derive"
        optimizer.zero_grad()
        cross_entropy(model(torch.randn(4, 4)), torch.randint(3, (4,))).backward()
        optimizer.step()
    assert optimizer.phase == "share"


def test_shampoo_takes_the_direction_of_inverse_fourth_roots_at_sgds_length():
    weight = nn.Parameter(torch.zeros(5, 5, dtype=torch.float64))
    optimizer = Shampoo([weight], lr=1.0, statistics_every=1, inverse_every=1, **{**SHAMPOO, "momentum": 0.0})
    L, R = (1e-6 * torch.eye(5, dtype=torch.float64) for _ in range(2))
    for seed in range(3):
        G = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        before, weight.grad = weight.detach().clone(), G.clone()
        optimizer.step()
        L, R = 0.9 * L + 0.1 * G @ G.T, 0.9 * R + 0.1 * G.T @ G
    direction = _root(L) @ G @ _root(R)
    expected = -direction * G.norm() / direction.norm()
    assert (weight - before - expected).norm() <= 1e-2 * expected.norm()  # the package's iteration ends at 1e-3


def _root(matrix):
    values, vectors = torch.linalg.eigh(matrix)
    ridge = 1e-6 * values[-1]
    return vectors @ torch.diag((values + ridge) ** -0.25) @ vectors.T


def test_adahessian_estimates_the_diagonal_not_row_sums():
    A = torch.tensor([[2.0, 1.5], [1.5, 3.0]])
    w = nn.Parameter(torch.tensor([1.0, -1.0]))
    optimizer = AdaHessian([w], lr=0.0, betas=(0.9, 0.999), weight_decay=0.0, eps=1e-8, hessian_power=1.0, samples=4000)
    (w.grad,) = torch.autograd.grad(0.5 * w @ A @ w, w, create_graph=True)
    optimizer.step()
    estimate = optimizer.state[w]["hessian"]
    assert torch.allclose(estimate, A.diagonal(), atol=0.3)  # rows add up to 3.5 and 4.5; four deviations are 0.27
    assert w.grad.grad_fn is None


def test_a_second_order_backward_leaves_what_has_no_gradient_alone():
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "frozen": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    model["frozen"].requires_grad_(requires_grad=False)
    x = torch.randn(3, 2)
    loss = mse_loss(model["used"](x) + model["frozen"](x), torch.randn(3, 1))
    optimizers.backward(loss, model, second_order=True)
    assert model["used"].weight.grad.requires_grad
    assert model["frozen"].weight.grad is None
    assert model["unused"].weight.grad is None


def test_overrides_replace_the_recipe_and_whole_numbers_become_fractions():
    recipe = optimizers.resolve(METHODS["sgd-m"], "images", {"lr": 1})
    assert recipe["lr"] == 1.0
    assert isinstance(recipe["lr"], float)
    translation = optimizers.resolve(METHODS["adamw"], "translation", {})
    assert translation["beta2"] == 0.98


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: optimizers.method("sgd"), "sgd-m, adamw"),
        (lambda: optimizers.resolve(METHODS["eva"], "speech", {}), "family='speech'"),
        (lambda: optimizers.resolve(METHODS["eva"], "images", {"alpha": 1.0}), "alpha=1.0.*eva.*kl_clip"),
        (lambda: optimizers.make(METHODS["eva"], nn.Linear(2, 2), {"lr": 0.1}, 1), "momentum of eva is missing"),
        (lambda: optimizers.make(METHODS["eva"], nn.Linear(2, 2), {}, 0), "steps_per_epoch=0"),
        (
            lambda: optimizers.make(
                METHODS["fngd"], nn.LayerNorm(2), optimizers.resolve(METHODS["fngd"], "images", {}), 1
            ),
            "fngd cannot be made",
        ),
    ],
)
def test_what_is_wrong_is_said(call, said):
    with pytest.raises(InputError, match=said):
        call()


@pytest.mark.parametrize(("low", "high", "log"), [(1.0, 1.0, False), (0.0, 1.0, True)])
def test_bad_ranges_are_refused(low, high, log):
    with pytest.raises(ValueError, match="low="):
        Range(low=low, high=high, log=log)
