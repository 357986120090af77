"""Half precision: autocast, GradScaler, models of bfloat16. The oracle has the same rounded weights, in float64.

Networks are held to a few roundings of their format. Where inputs and output gradients are exactly known, coefficients
are held to float32: that is what the Gram matrix and the solve are in.
"""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import fngd
import formulas
import reference
from cases import CASES
from formulas import ONCE, POLICIES
from reference import relative_error

HALF = [torch.bfloat16, torch.float16]
M = 6


def roundings(dtype, count=8):
    return count * torch.finfo(dtype).eps


def rounded(model, dtype):
    """The model with weights that the format can hold."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.to(dtype))
    return model


def network(dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 12), nn.Linear(12, 3)
    )
    return rounded(model, torch.bfloat16).to(dtype)


def batch(seed=0, size=M):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 2, 5, 5, generator=generator).bfloat16().float()
    return x, torch.randint(3, (size,), generator=generator)


def backward(model, x, y, dtype=None, factor=1.0):
    with torch.autocast("cpu", dtype) if dtype else nullcontext():
        loss = cross_entropy(model(x).float(), y)
    (factor * loss).backward()
    return loss


def check(policy, optimizer, model, x, y, dtype):
    """p.grad is what the policy's formula says, and so is c̃ after a deriving step."""
    deriving = optimizer.phase == "derive"
    c = formulas.coefficients(policy, model, x, y) if deriving else optimizer.coefficients
    for name, expected in formulas.gradients(policy, model, x, y, c).items():
        assert relative_error(formulas.found_gradients(model)[name], expected) <= roundings(dtype), name


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_under_autocast_both_phases_of_every_policy_follow_the_formula(policy, dtype):
    model, (x, y) = network(), batch()
    optimizer = fngd.FNGD(model, lr=0.0, policy=policy)
    for phase in ("derive", "share" if policy in ONCE else "derive"):
        assert optimizer.phase == phase
        optimizer.zero_grad()
        backward(model, x, y, dtype)
        assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
        check(policy, optimizer, model, x, y, dtype)
        optimizer.step()
    assert {c.dtype for c in optimizer.coefficients.values()} == {torch.float32}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_model_of_bfloat16_follows_the_formula_in_both_phases_of_every_policy(policy):
    dtype = torch.bfloat16
    model, (x, y) = network(dtype), batch()
    optimizer = fngd.FNGD(model, lr=0.0, policy=policy)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model, x.to(dtype), y)
        assert {p.grad.dtype for p in model.parameters()} == {dtype}
        check(policy, optimizer, model, x, y, dtype)
        optimizer.step()
    assert {c.dtype for c in optimizer.coefficients.values()} == {torch.float32}


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_every_entry_of_a_half_precision_parameter_takes_its_step(dtype, momentum):
    """Torch's fused kernel would leave whole vectors of them as they were."""
    model = nn.Linear(40, 40).to(dtype)
    optimizer = fngd.FNGD(model, lr=1.0, momentum=momentum, policy=fngd.Fresh())
    for _ in range(2):
        before = [p.detach().clone() for p in model.parameters()]
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        assert all((p < q - 0.5).all() for p, q in zip(model.parameters(), before, strict=True))
    with pytest.raises(ValueError, match="fused=True does not go with parameters of half precision on a CPU"):
        fngd.FNGD(nn.Linear(4, 4).to(dtype), lr=0.1, derive_steps=1, fused=True)


def test_a_model_of_bfloat16_learns():
    model, (x, y) = network(torch.bfloat16), batch()
    optimizer = fngd.FNGD(model, lr=0.3, momentum=0.9, derive_steps=5)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        losses.append(backward(model, x.bfloat16(), y).item())
        optimizer.step()
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_under_autocast_every_case_follows_the_formula(name, dtype):
    case = CASES[name]
    model, inputs, targets = case.data(torch.float32)
    rounded(model, dtype)
    inputs, targets = [t.to(dtype).float() for t in inputs], targets.to(dtype).float()
    oracle, exact = formulas.exact(model), [x.double() for x in inputs]
    optimizer = fngd.FNGD(model, lr=0.0, alpha=0.05, derive_steps=1, batch_dim=case.batch_dim)
    for phase in ("derive", "share"):
        assert optimizer.phase == phase
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            output = model(*inputs)
        case.loss(output.float(), targets).backward()
        for layer in optimizer.preconditioner.layers:
            mine = [p for p in layer.parameters if p.requires_grad]
            if not mine:
                continue
            pairs = zip(model.parameters(), oracle.parameters(), strict=True)
            table = {id(p): twin for p, twin in pairs}
            chosen = [table[id(p)] for p in mine]
            U = reference.alone(oracle, case.loss, exact, targets.double(), chosen, case.batch_dim)
            c = reference.coefficients(U, reference.damping(U, 0.05))
            c = c if phase == "derive" else optimizer.coefficients[layer.name].double()
            assert relative_error(reference.flat([p.grad for p in mine]), U @ c / U.shape[1]) <= roundings(dtype)
        optimizer.step()


SINGLE = ["linear", "linear on sequences", "linear on folded sequences", "conv1d", "conv2d", "conv2d with groups"]


@pytest.mark.parametrize("route", ["pairwise", "materialised", None])
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("autocast", [True, False])
def test_gram_and_solve_are_in_float32(name, dtype, autocast, route):
    """One layer, a loss that is linear in its output: x and z are known to the bit, and so c to float32."""
    case = CASES[name]
    model, (x,), g = case.data(torch.float32)
    model, x, g = rounded(model, dtype), x.to(dtype), g.to(dtype)
    oracle = formulas.exact(model)
    model = model if autocast else model.to(dtype)
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=1, gram_route=route)
    with torch.autocast("cpu", dtype, enabled=autocast):
        output = model(x)
    assert output.dtype == dtype
    (output.float() * g.float()).sum().backward()
    U = reference.alone(oracle, lambda o, g: (o * g).sum(), [x.double()], g.double(), list(oracle.parameters()))
    (c,) = optimizer.coefficients.values()
    assert c.dtype == torch.float32
    assert relative_error(c, reference.coefficients(U, reference.damping(U, 0.005))) <= 1e-5


@pytest.mark.parametrize("route", ["pairwise", "materialised"])
def test_in_float16_a_feature_of_small_gradients_beside_one_of_large_ones_keeps_its_bits(route):
    """Divided by the largest gradient inside float16, the small ones would be subnormal."""
    torch.manual_seed(0)
    model, x = nn.Linear(7, 2, bias=False), torch.randn(M, 7).half()
    g = (torch.randn(M, 2) * torch.tensor([3e4, 1e-3])).half()
    fngd.FNGD(model, lr=0.0, derive_steps=1, gram_route=route)
    with torch.autocast("cpu", torch.float16):
        output = model(x)
    (output.float() * g.float()).sum().backward()
    U = torch.einsum("mo,mi->oim", g.double(), x.double()).flatten(0, 1)
    expected = (U @ reference.coefficients(U, reference.damping(U, 0.005))).view(2, 7)
    assert relative_error(model.weight.grad[1], expected[1]) <= roundings(torch.float16, 2)


# GradScaler


def scaled_run(scale, policy, dtype, steps=3, **arguments):
    """A few steps under a GradScaler; it takes each batch as often as it needs to come through."""
    model = network()
    optimizer = fngd.FNGD(model, lr=0.1, momentum=0.9, policy=policy, **arguments)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**6)
    tries = 0
    for seed in range(steps):
        before = [p.detach().clone() for p in model.parameters()]
        while all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)):
            assert optimizer.preconditioner.step_count == seed
            optimizer.zero_grad()
            backward(model, *batch(seed), dtype, scaler.get_scale())
            scaler.scale(torch.ones(()))
            scaler.step(optimizer)
            scaler.update()
            tries += 1
    assert optimizer.preconditioner.step_count == steps
    return model, optimizer, tries - steps


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_coefficients_and_weights_do_not_see_the_scale(policy, dtype):
    (model, optimizer, _), (same, other, _) = (scaled_run(scale, policy, dtype) for scale in (1.0, 2.0**16))
    assert all(torch.equal(c, other.coefficients[name]) for name, c in optimizer.coefficients.items())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), same.parameters(), strict=True))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_in_float16_coefficients_see_no_more_of_the_scale_than_the_format_does(policy):
    (_, optimizer, _), (_, other, _) = (scaled_run(s, policy, torch.float16, steps=1) for s in (2.0**6, 2.0**14))
    for name, c in optimizer.coefficients.items():
        assert relative_error(c, other.coefficients[name]) <= roundings(torch.float16, 1)


@pytest.mark.parametrize("fused", [None, True, False])
@pytest.mark.parametrize("policy", [*POLICIES, fngd.Shared(3)], ids=str)
@pytest.mark.filterwarnings("ignore:fngd. NaN or Inf")
def test_steps_that_overflow_leave_no_trace(policy, fused):
    """Neither in the weights and the momentum, nor in the step counter, nor in c̃: the very first ones included."""
    model, optimizer, overflows = scaled_run(2.0**22, policy, torch.float16, fused=fused)
    assert overflows >= 3
    straight, other, none = scaled_run(2.0 ** (22 - overflows), policy, torch.float16, fused=fused)
    assert none == 0
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), straight.parameters(), strict=True))
    assert all(torch.equal(c, other.coefficients[name]) for name, c in optimizer.coefficients.items())


@pytest.mark.filterwarnings("ignore:fngd. NaN or Inf")
def test_layers_above_an_overflow_count_its_batch_and_layers_below_do_not():
    """The weights of the layer between send gradients down that float16 cannot hold."""
    model, (x, y) = network(), batch()
    with torch.no_grad():
        model[5].weight.mul_(2.0**8)
    plain = copy.deepcopy(model)
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    backward(model, x, y, torch.float16, 2.0**14)
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)
    assert {layer.name: int(layer.history.skipped) for layer in optimizer.preconditioner.layers} == {
        "0": 1, "2": 1, "5": 0, "6": 0,
    }  # fmt: skip
    assert set(optimizer.coefficients) == {"5", "6"}
    assert optimizer.preconditioner.step_count == 0
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))
    for name, c in formulas.coefficients(fngd.Shared(2), plain, x, y).items():
        if name in optimizer.coefficients:
            assert relative_error(optimizer.coefficients[name], c) <= roundings(torch.float16)


OPTIMIZERS = {
    "sgd": lambda p, fused: torch.optim.SGD(p, lr=0.1, fused=fused),
    "adamw": lambda p, fused: torch.optim.AdamW(p, lr=0.01, fused=fused),
}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.filterwarnings("ignore:fngd. NaN or Inf")
def test_a_step_that_overflows_does_not_count_under_any_optimizer_fused_or_not(kind, fused, named):
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters(), fused)
    scaler = torch.amp.GradScaler("cpu")
    with fngd.NaturalGradient(model, optimizer if named else None, derive_steps=2) as natural:
        for factor, count in ((torch.inf, 0), (1.0, 1), (torch.nan, 1), (1.0, 2)):
            optimizer.zero_grad()
            scaler.scale(factor * cross_entropy(model(batch()[0]), batch()[1])).backward()
            scaler.step(optimizer)
            scaler.update()
            assert natural.step_count == count
        assert {s.batches for s in natural.statistics().values()} == {2}
        assert {s.skipped for s in natural.statistics().values()} == {2}
        assert natural.phase == "share"


@pytest.mark.filterwarnings("ignore:fngd. NaN or Inf")
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_step_that_overflows_while_sharing_changes_nothing(policy):
    model, (x, y) = network(), batch()
    optimizer = fngd.FNGD(model, lr=0.1, momentum=0.9, policy=policy)
    scaler = torch.amp.GradScaler("cpu")
    for factor in (1.0, 1.0, torch.inf):
        before = copy.deepcopy((list(model.parameters()), optimizer.coefficients))
        optimizer.zero_grad()
        scaler.scale(factor * cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before[0], strict=True))
    assert all(torch.equal(c, before[1][name]) for name, c in optimizer.coefficients.items())
    assert optimizer.preconditioner.step_count == 2


@pytest.mark.parametrize("steps", [1, 2], ids=["derive", "share"])
def test_gradients_can_be_unscaled_and_clipped_before_the_step(steps):
    weights = []
    for scale in (1.0, 2.0**16):
        model, (x, y) = network(), batch()
        optimizer = fngd.FNGD(model, lr=0.1, momentum=0.9, derive_steps=1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for _ in range(steps):
            optimizer.zero_grad()
            scaler.scale(cross_entropy(model(x), y)).backward()
            scaler.unscale_(optimizer)
            assert nn.utils.clip_grad_norm_(model.parameters(), 1e-3) > 1e-3
            scaler.step(optimizer)
            scaler.update()
        weights.append(list(model.parameters()))
    assert all(torch.equal(p, q) for p, q in zip(*weights, strict=True))


# What autocast can look like


class Twice(nn.Module):
    """A layer that is used twice, so that autocast's cache of weights has something to give, with forced float32."""

    def __init__(self, between):
        super().__init__()
        self.inner, self.last, self.between = nn.Linear(6, 6), nn.Linear(6, 3), between

    def forward(self, x):
        x = self.inner(x).relu()
        return self.last(self.between(self.inner, x))


def disabled(layer, x):
    with torch.autocast("cpu", enabled=False):
        return layer(x.float())


AROUND = {
    "twice": lambda layer, x: layer(x),
    "softmax in float32": lambda layer, x: layer(torch.softmax(x, -1)),
    "layer norm": lambda layer, x: layer(nn.functional.layer_norm(x, (6,))),
    "a region without autocast": disabled,
    "checkpoint": lambda layer, x: checkpoint(layer, x, use_reentrant=False),
}


@pytest.mark.parametrize("inside", [False, True], ids=["", "backward inside"])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("between", AROUND)
@pytest.mark.parametrize("policy", [fngd.Shared(1), fngd.Constant(1), fngd.Fresh()], ids=str)
def test_a_layer_used_twice_under_autocast_follows_the_formula(policy, between, cache, inside):
    dtype = torch.bfloat16
    torch.manual_seed(0)
    model = rounded(Twice(AROUND[between]), dtype)
    x, y = torch.randn(M, 6).to(dtype).float(), torch.randint(3, (M,))
    optimizer = fngd.FNGD(model, lr=0.0, policy=policy)
    oracle = formulas.exact(model)
    with torch.autocast("cpu", dtype, cache_enabled=cache):
        with torch.no_grad():
            model(x)  # fills the cache with weights that have no graph
        for _ in range(2):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            with nullcontext() if inside else torch.autocast("cpu", enabled=False):
                loss.backward()
            deriving = optimizer.phase == "derive"
            optimizer.step()
            with torch.autocast("cpu", enabled=False):
                for name in ("inner", "last"):
                    U = double_columns(oracle, x, y, name)
                    c = reference.coefficients(U, reference.damping(U, 0.005))
                    c = c if deriving else optimizer.coefficients[name].double().expand(M)
                    got = reference.flat([p.grad for p in getattr(model, name).parameters()])
                    assert relative_error(got, U @ c / M) <= roundings(dtype)


def double_columns(oracle, x, y, name):
    oracle.between = {disabled: AROUND["twice"]}.get(oracle.between, oracle.between)
    return formulas.columns(oracle, x, y, name)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_autocast_leaves_float64_alone(policy):
    runs = []
    for enabled in (True, False):
        model, (x, y) = network(torch.float64), batch()
        optimizer = fngd.FNGD(model, lr=0.1, policy=policy)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                loss = cross_entropy(model(x.double()), y)
            loss.backward()
            optimizer.step()
        assert {c.dtype for c in optimizer.coefficients.values()} == {torch.float64}
        runs.append(list(model.parameters()))
    assert all(torch.equal(p, q) for p, q in zip(*runs, strict=True))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_inputs_that_are_bfloat16_already_give_what_float32_ones_do(policy):
    runs = []
    for dtype in (torch.float32, torch.bfloat16):
        model, (x, y) = network(), batch()
        optimizer = fngd.FNGD(model, lr=0.1, policy=policy)
        for _ in range(3):
            optimizer.zero_grad()
            backward(model, x.to(dtype), y, torch.bfloat16)
            optimizer.step()
        runs.append(list(model.parameters()))
    assert all(torch.equal(p, q) for p, q in zip(*runs, strict=True))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_the_forward_pass_under_autocast_is_torchs_own_to_the_bit(policy):
    model, (x, y) = network(), batch()
    plain = copy.deepcopy(model)
    optimizer = fngd.FNGD(model, lr=0.0, policy=policy)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            output, expected = model(x), plain(x)
        assert output.dtype == expected.dtype
        assert torch.equal(output, expected)
        cross_entropy(output.float(), y).backward()
        optimizer.step()
