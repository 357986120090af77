"""FNGD keeps the contract of torch.optim.Optimizer."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fngd
from reference import relative_error


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def make(model, **kwargs):
    return fngd.FNGD(model, lr=0.1, momentum=0.9, weight_decay=1e-3, **{"derive_steps": 3, **kwargs})


def data(seed=0, size=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 5, generator=generator), torch.randint(3, (size,), generator=generator)


def step(model, optimizer, seed):
    x, y = data(seed)
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def same(model, other):
    return all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("interrupted", [0, 1, 2, 3, 4, 6])
def test_a_saved_state_goes_on_bit_for_bit(interrupted):
    """Interrupted in the derive phase, on the switch and in the share phase."""
    model = network()
    optimizer = make(model)
    for seed in range(8):
        if seed == interrupted:
            buffer = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
        step(model, optimizer, seed)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    resumed = network()
    resumed.load_state_dict(saved["model"])
    second = make(resumed)
    second.load_state_dict(saved["optimizer"])
    for seed in range(interrupted, 8):
        step(resumed, second, seed)
    assert same(model, resumed)
    assert second.phase == optimizer.phase
    assert all(torch.equal(c, second.coefficients[name]) for name, c in optimizer.coefficients.items())
    assert second.statistics() == optimizer.statistics()


def test_a_state_dict_is_not_changed_by_later_steps():
    model = network()
    optimizer = make(model)
    step(model, optimizer, 0)
    saved = optimizer.preconditioner.state_dict()
    kept = copy.deepcopy(saved)
    step(model, optimizer, 1)
    assert saved["step"] == kept["step"]
    assert torch.equal(saved["layers"]["0"]["mean"], kept["layers"]["0"]["mean"])


@pytest.mark.parametrize("steps", [0, 2, 4])
def test_a_deep_copy_of_model_and_optimizer_takes_the_same_next_steps(steps):
    model = network()
    optimizer = make(model)
    for seed in range(steps):
        step(model, optimizer, seed)
    twin, other = copy.deepcopy((model, optimizer))
    for seed in range(steps, steps + 4):
        assert step(model, optimizer, seed) == step(twin, other, seed)
    assert same(model, twin)
    assert other.preconditioner.model is twin


def test_param_groups_have_their_own_settings():
    model, plain = network(), network()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}]
    optimizer = fngd.FNGD(model, groups, lr=0.1, alpha=1e30, derive_steps=1)
    reference = torch.optim.SGD(
        [{"params": plain[0].parameters(), "lr": 0.5}, {"params": plain[2].parameters()}], lr=0.1, fused=True
    )
    for seed in range(3):
        step(model, optimizer, seed)
        step(plain, reference, seed)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert relative_error(mine, theirs) <= 1e-6  # c is one; sums over the samples may round otherwise than torch's


def test_named_parameters_are_taken_as_torch_takes_them():
    model = network()
    optimizer = fngd.FNGD(model, model.named_parameters(), lr=0.1, derive_steps=1)
    assert optimizer.param_groups[0]["param_names"] == [name for name, _ in model.named_parameters()]


def test_parameters_outside_the_groups_are_neither_updated_nor_preconditioned():
    model = network()
    optimizer = fngd.FNGD(model, model[2].parameters(), lr=0.1, derive_steps=1)
    before = model[0].weight.clone()
    step(model, optimizer, 0)
    assert set(optimizer.coefficients) == {"2"}
    assert torch.equal(model[0].weight, before)


def test_a_group_added_later_is_preconditioned_from_then_on():
    model = network()
    optimizer = fngd.FNGD(model, model[2].parameters(), lr=0.1, derive_steps=3)
    step(model, optimizer, 0)
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
    step(model, optimizer, 1)
    assert set(optimizer.coefficients) == {"0", "2"}
    assert optimizer.statistics()["0"].batches == 1


def test_schedulers_change_the_learning_rate():
    model = network()
    optimizer = make(model)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    for seed in range(2):
        step(model, optimizer, seed)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_a_closure_is_called_and_its_loss_returned():
    model, plain = network(), network()
    optimizer, by_hand = make(model), make(plain)
    x, y = data()

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == step(plain, by_hand, 0)
    assert same(model, plain)


def test_missing_gradients_and_frozen_parameters_are_left_alone():
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3))
    model[0].weight.requires_grad_(requires_grad=False)
    before = model[0].weight.clone()
    optimizer = make(model)
    optimizer.step()
    step(model, optimizer, 0)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_dtype_is_kept(dtype):
    model = nn.Linear(5, 3).to(dtype)
    optimizer = make(model, derive_steps=1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 5, dtype=dtype)).float().square().mean().backward()
        assert {p.grad.dtype for p in model.parameters()} == {dtype}
        optimizer.step()
    assert {p.dtype for p in model.parameters()} == {dtype}


def test_clipping_sees_the_weighted_gradient():
    model = network()
    make(model)
    x, y = data()
    cross_entropy(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert norm > 1e-3
    assert torch.cat([p.grad.flatten() for p in model.parameters()]).norm() <= 1.001e-3


def test_the_loss_falls():
    model = network()
    optimizer = fngd.FNGD(model, lr=1.0, momentum=0.9, derive_steps=5)
    losses = [step(model, optimizer, 0) for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("settings", [{}, {"dampening": 0.3, "weight_decay": 0.1}, {"maximize": True}], ids=str)
@pytest.mark.filterwarnings("ignore:fngd. layer .* is used outside of the model")
def test_a_parameter_may_get_its_first_gradient_late(settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    twin = copy.deepcopy(model)
    optimizer = fngd.FNGD(model, lr=0.1, momentum=0.9, fused=True, policy=fngd.Fresh(), damping=1e9, **settings)
    plain = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, fused=False, **settings)
    for step in range(4):
        x = torch.randn(5, 3)
        for network, rule in ((model, optimizer), (twin, plain)):
            rule.zero_grad()
            network[0 if step < 2 else slice(None)](x).square().mean().backward()
            rule.step()
    for late, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(late, expected, rtol=1e-5, atol=1e-6)
