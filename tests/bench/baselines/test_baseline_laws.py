"""KFAC and Eva keep the contract of torch.optim.Optimizer, and go downhill."""

import copy
import io
import pickle

import pytest
import torch
from baseline_cases import METHODS, data, differentiate, images, make, network, same, step
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from fngd_bench.clock import Stopwatch
from fngd_bench.models.small import small_cnn
from reference import relative_error

pytestmark = pytest.mark.parametrize("method", METHODS)


def test_the_loss_falls_on_a_quadratic(method):
    model = nn.Linear(6, 2)
    x = torch.randn(32, 6) * torch.tensor([10.0, 3.0, 1.0, 1.0, 0.3, 0.1])
    y = x @ torch.randn(6, 2) + 1
    # the default clip suits losses that are log-likelihoods: this one starts near 80 and would fall slowly under KFAC
    optimizer = make(method, model, weight_decay=0.0, lr=0.3, **({"kl_clip": 0.1} if method == "kfac" else {}))
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        loss = (model(x) - y).square().sum(1).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_the_loss_falls_on_digits(method):
    digits = load_digits()
    x = torch.tensor(digits.images[:256], dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target[:256])
    model = small_cnn(10)
    optimizer = make(method, model, lr=0.05)
    losses = []
    for _ in range(5):
        for part in torch.randperm(256).split(64):
            optimizer.zero_grad()
            losses.append(differentiate(model, x[part], y[part]).item())
            optimizer.step()
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])


@pytest.mark.parametrize("interrupted", [0, 1, 2, 3, 4, 5])
def test_a_saved_state_goes_on_bit_for_bit(method, interrupted):
    """Interrupted before, on and after steps that measure or invert."""
    model = images()
    optimizer = make(method, model)
    for seed in range(8):
        if seed == interrupted:
            buffer = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
        step(model, optimizer, seed, shape=(2, 6, 6))
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    resumed = images()
    resumed.load_state_dict(saved["model"])
    second = make(method, resumed)
    second.load_state_dict(saved["optimizer"])
    for seed in range(interrupted, 8):
        step(resumed, second, seed, shape=(2, 6, 6))
    assert same(model, resumed)
    assert second.steps == optimizer.steps == 8


def test_a_state_dict_is_not_changed_by_later_steps(method):
    model = network()
    optimizer = make(method, model)
    step(model, optimizer, 0)
    saved = optimizer.state_dict()["preconditioner"]
    kept = copy.deepcopy(saved)
    for seed in range(1, 6):
        step(model, optimizer, seed)
    assert saved["steps"] == kept["steps"] == 1
    for name, layer in kept["layers"].items():
        assert torch.equal(layer["inputs"], saved["layers"][name]["inputs"])
        assert layer["batches"] == saved["layers"][name]["batches"]
        assert all(torch.equal(a, b) for a, b in zip(layer["prepared"], saved["layers"][name]["prepared"], strict=True))


def test_sample_order_does_not_matter(method):
    x, y = data(size=9, shape=(2, 6, 6), dtype=torch.float64)
    results = []
    for order in (torch.arange(9), torch.randperm(9)):
        model = images(torch.float64)
        optimizer = make(method, model)
        for _ in range(3):
            optimizer.zero_grad()
            differentiate(model, x[order], y[order])
            optimizer.step()
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert relative_error(*results) <= 1e-9


def test_channels_last_takes_the_same_steps(method):
    results = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        model = images(torch.float64).to(memory_format=memory_format)
        optimizer = make(method, model)
        for seed in range(3):
            x, y = data(seed, shape=(2, 6, 6), dtype=torch.float64)
            optimizer.zero_grad()
            differentiate(model, x.to(memory_format=memory_format), y)
            optimizer.step()
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert relative_error(*results) <= 1e-9


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_deep_copy_of_model_and_optimizer_takes_the_same_next_steps(method, steps):
    model = images()
    optimizer = make(method, model)
    for seed in range(steps):
        step(model, optimizer, seed, shape=(2, 6, 6))
    twin, other = copy.deepcopy((model, optimizer))
    for seed in range(steps, steps + 4):
        assert step(model, optimizer, seed, shape=(2, 6, 6)) == step(twin, other, seed, shape=(2, 6, 6))
    assert same(model, twin)
    assert other.model is twin


def test_a_pickle_of_model_and_optimizer_takes_the_same_next_step(method):
    model = network()
    optimizer = make(method, model)
    step(model, optimizer, 0)
    twin, other = pickle.loads(pickle.dumps((model, optimizer)))
    assert step(model, optimizer, 1) == step(twin, other, 1)
    assert same(model, twin)


def test_param_groups_have_their_own_settings(method):
    model, other = network(), network()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    optimizer = make(method, model, groups, kl_clip=float("inf"), momentum=0.0, weight_decay=0.0)
    reference = make(method, other, kl_clip=float("inf"), momentum=0.0, weight_decay=0.0)
    before = model[0].weight.clone()
    step(model, optimizer, 0)
    step(other, reference, 0)
    assert torch.equal(model[0].weight, before)
    assert torch.equal(model[2].weight, other[2].weight)


def test_parameters_outside_the_groups_are_neither_updated_nor_preconditioned(method):
    model = network()
    optimizer = make(method, model, model[2].parameters())
    before = model[0].weight.clone()
    step(model, optimizer, 0)
    assert optimizer.preconditioned == ("2",)
    assert set(optimizer.states) == {"2"}
    assert torch.equal(model[0].weight, before)


def test_a_group_added_later_is_preconditioned_from_then_on(method):
    model = network()
    optimizer = make(method, model, model[2].parameters())
    step(model, optimizer, 0)
    kept = optimizer.states["2"].batches
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
    for seed in range(1, 3):
        step(model, optimizer, seed)
    assert set(optimizer.states) == {"0", "2"}
    assert optimizer.states["2"].batches > kept


def test_a_bias_that_comes_in_later_widens_its_layers_statistics(method):
    model = nn.Linear(4, 3)
    optimizer = make(method, model, [model.weight], **({"statistics_every": 1} if method == "kfac" else {}))
    for width in (4, 5):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
        assert len(optimizer.states[""].inputs) == width
        if width == 4:
            optimizer.add_param_group({"params": [model.bias]})


def test_schedulers_change_the_learning_rate(method):
    model = network()
    optimizer = make(method, model)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    for seed in range(2):
        step(model, optimizer, seed)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_a_closure_is_called_and_its_loss_returned(method):
    model, plain = network(), network()
    optimizer, by_hand = make(method, model), make(method, plain)
    x, y = data()

    def closure():
        optimizer.zero_grad()
        return differentiate(model, x, y)

    assert optimizer.step(closure).item() == step(plain, by_hand, 0)
    assert same(model, plain)


def test_step_hooks_run_once_a_step(method):
    torch.optim.SGD(network().parameters())  # torch wraps the step of a class when it is first used
    model, calls = network(), []
    optimizer = make(method, model)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    step(model, optimizer, 0)
    assert calls == ["before", "after"]


def test_missing_gradients_and_frozen_parameters_are_left_alone(method):
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3), nn.Linear(3, 3))
    model[0].weight.requires_grad_(requires_grad=False)
    before = [p.clone() for p in model.parameters()]
    optimizer = make(method, model)
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    cross_entropy(model[:2](data()[0]), data()[1]).backward()
    optimizer.step()
    changed = [not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)]
    assert changed == [False, True, True, True, False, False]


def test_a_layer_frozen_later_is_left_alone(method):
    model = network()
    optimizer = make(method, model)
    step(model, optimizer, 0)
    model[0].requires_grad_(requires_grad=False)
    model[2].bias.requires_grad_(requires_grad=False)
    optimizer.zero_grad()
    before = [p.clone() for p in model.parameters()]
    for seed in range(1, 4):
        step(model, optimizer, seed)
    changed = [not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)]
    assert changed == [False, False, True, False]


def test_a_parameter_whose_first_gradient_comes_late_is_updated_as_by_sgd(method):
    model, twin = network(), network()
    optimizer = make(method, model)
    optimizer.detach()
    plain = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, fused=False)
    x, y = data()
    for net, o in ((model, optimizer), (twin, plain)):
        net[0](x).square().mean().backward()
        o.step()
        o.zero_grad()
        differentiate(net, x, y)
        o.step()
    assert all(torch.allclose(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_dtype_is_kept(method, dtype):
    model = nn.Linear(5, 3).to(dtype)
    optimizer = make(method, model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 5, dtype=dtype)).float().square().mean().backward()
        optimizer.step()
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {dtype}
    assert optimizer.states[""].inputs.dtype == torch.promote_types(dtype, torch.float32)
    assert {v.dtype for state in optimizer.state.values() for v in state.values()} == {dtype}
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_model_of_two_dtypes_is_trained(method):
    model = nn.Sequential(nn.Linear(5, 4).double(), nn.Linear(4, 3))
    optimizer = make(method, model)
    for _ in range(2):
        optimizer.zero_grad()
        model[1](model[0](torch.randn(6, 5).double()).float()).square().mean().backward()
        optimizer.step()
    assert [p.dtype for p in model.parameters()] == [torch.float64] * 2 + [torch.float32] * 2


def test_a_step_leaves_the_gradients_as_they_were(method):
    model = images()
    optimizer = make(method, model)
    differentiate(model, *data(shape=(2, 6, 6)))
    before = [(p.grad, p.grad.clone()) for p in model.parameters()]
    optimizer.step()
    assert all(p.grad is g and torch.equal(g, kept) for p, (g, kept) in zip(model.parameters(), before, strict=True))


def test_named_parameters_are_taken_as_torch_takes_them(method):
    model = network()
    optimizer = make(method, model, model.named_parameters())
    assert optimizer.param_groups[0]["param_names"] == [name for name, _ in model.named_parameters()]
    step(model, optimizer)


def test_a_learning_rate_may_be_a_tensor(method):
    model, other = network(), network()
    optimizer, reference = make(method, model, lr=torch.tensor(0.1)), make(method, other, lr=0.1)
    for seed in range(3):
        step(model, optimizer, seed)
        step(other, reference, seed)
    assert all(
        torch.allclose(p, q, rtol=1e-4, atol=1e-6) for p, q in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_the_clock_sees_the_preconditioning(method):
    model, watch = network(), Stopwatch()
    optimizer = make(method, model)
    with watch.running():
        step(model, optimizer)
    assert watch.seconds["precondition"] > 0
