"""Corners that ordinary training runs into: each is exact, or named."""

import copy
import inspect
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import fngd
import reference
from fngd.layers.run import Run
from fngd.settings import Settings
from reference import relative_error


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batch(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (size,), generator=generator)


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()


def natural_gradient(plain, x, y):
    """What p.grad of all parameters together must be, if they are one layer."""
    U = reference.alone(plain, cross_entropy, [x], y, list(plain.parameters()))
    return U @ reference.coefficients(U, reference.damping(U, 0.005)) / len(y)


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("policy", [fngd.Shared(1), fngd.Constant(1), fngd.Refreshed(10, 0.9)], ids=str)
def test_a_first_batch_that_is_not_finite_leaves_the_plain_gradient_not_zero(policy):
    model = network()
    optimizer = fngd.FNGD(model, lr=0.0, policy=policy)
    x, y = batch(6)
    cross_entropy(model(x * torch.inf), y).backward()
    optimizer.zero_grad()  # as a training loop that skips the step does
    with pytest.warns(UserWarning, match="NaN or Inf"):
        optimizer.step()
    assert not optimizer.coefficients
    plain = copy.deepcopy(model)
    for m in (model, plain):
        m.zero_grad()
    with pytest.warns(UserWarning, match="had no finite gradient"):
        output = model(x)
    cross_entropy(output, y).backward()
    cross_entropy(plain(x), y).backward()
    assert all(relative_error(a, b) <= 1e-13 for a, b in zip(gradients(model), gradients(plain), strict=True))


def test_a_longer_batch_that_is_not_finite_does_not_wipe_the_mean():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=3)
    step(model, optimizer, *batch(6))
    before = optimizer.coefficients["0"]
    x, y = batch(8)
    with pytest.warns(UserWarning, match="NaN or Inf"):
        step(model, optimizer, x * torch.nan, y)
    assert torch.equal(optimizer.coefficients["0"], before)


def test_zero_gradients_stay_zero_when_scaled_by_the_damping():
    model = network()
    nn.init.zeros_(model[2].weight)
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=1, scale_by_damping=True)
    x, y = batch(6)
    for _ in range(2):
        step(model, optimizer, x, y)
        assert all((p.grad == 0).all() for p in model[0].parameters())
        assert all(p.grad.isfinite().all() for p in model.parameters())
    assert optimizer.statistics()["0"].batches == 1


def test_measures_without_a_value_do_not_count_in_their_mean():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=3)
    x, y = batch(6)
    step(model, optimizer, x, y)
    before = optimizer.statistics()["2"]
    optimizer.zero_grad()
    (0.0 * cross_entropy(model(x), y)).backward()
    optimizer.step()
    after = optimizer.statistics()["2"]
    assert (after.cosine, after.effective_rank) == (before.cosine, before.effective_rank)
    assert after.batches == 2


class Standardised(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - weight.mean(), bias)


def test_a_convolution_with_its_own_inner_forward_is_left_alone_and_named():
    model = nn.Sequential(Standardised(2, 3, 3), nn.Flatten(), nn.Linear(27, 2))
    diagnosis = fngd.doctor(model, torch.randn(4, 2, 5, 5))
    assert diagnosis.rows[0].reason.startswith("Standardised overrides the _conv_forward of Conv2d")
    plain, x = copy.deepcopy(model), torch.randn(4, 2, 5, 5)
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    assert torch.equal(model(x), plain(x))


def test_a_forward_replaced_on_the_instance_and_a_lazy_layer_are_left_alone_and_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(3))
    model[0].forward = lambda x: x
    reasons = [row.reason for row in fngd.doctor(nn.ModuleList([model[0]])).rows]
    assert reasons == ["its forward was replaced on the instance"]
    assert fngd.layers.registry.survey(model)[1].reason == "lazy: run one forward pass before you attach"


def test_a_group_added_while_sharing_takes_the_plain_gradient_and_is_named():
    model = network()
    optimizer = fngd.FNGD(model, model[2].parameters(), lr=0.1, derive_steps=1)
    x, y = batch(6)
    step(model, optimizer, x, y)
    optimizer.add_param_group({"params": model[0].parameters()})
    with pytest.warns(UserWarning, match="'0' had no finite gradient"):
        step(model, optimizer, x, y)


def test_a_layer_unfrozen_while_sharing_is_named():
    model = network()
    model[0].requires_grad_(requires_grad=False)
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=1)
    step(model, optimizer, *batch(6))
    step(model, optimizer, *batch(6))
    model[0].requires_grad_(requires_grad=True)
    with pytest.warns(UserWarning, match="'0' had no finite gradient"):
        model(batch(6)[0])


def test_frozen_layers_save_no_inputs_while_sharing():
    model = nn.Sequential(nn.Linear(5, 400), nn.Linear(400, 3))
    model[0].requires_grad_(requires_grad=False)
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=1)
    step(model.double(), optimizer, *batch(6))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        model(batch(6)[0])
    assert 5 * 6 not in saved


class Twice(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner, self.reentrant = nn.Linear(5, 5), reentrant

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(self.inner, x, use_reentrant=self.reentrant).tanh()
        return x


def test_a_checkpointed_layer_used_twice_is_exact_without_reentry_and_named_with_it():
    model, again = Twice(reentrant=False).double(), Twice(reentrant=True).double()
    plain = copy.deepcopy(model)
    again.load_state_dict(model.state_dict())
    x, y = batch(6)
    x.requires_grad_()

    fngd.FNGD(model, lr=0.1, derive_steps=1)
    cross_entropy(model(x), y).backward()
    assert relative_error(reference.flat(gradients(model)), natural_gradient(plain, x.detach(), y)) <= 1e-10
    fngd.FNGD(again, lr=0.1, derive_steps=1)
    with pytest.warns(UserWarning, match="use_reentrant=False"):
        cross_entropy(again(x), y).backward()


class Halves(nn.Module):
    """One layer, two outputs that two losses can go back through on their own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 3)

    def forward(self, x):
        return self.inner(x), self.inner(x.flip(0))


def test_a_probe_for_an_input_gradient_leaves_nothing_behind():
    torch.manual_seed(0)
    model = Halves().double()
    plain = copy.deepcopy(model)
    fngd.FNGD(model, lr=0.1, alpha=1e30, derive_steps=1)
    x, y = batch(6)
    x.requires_grad_()
    first, second = model(x)
    torch.autograd.grad(cross_entropy(first, y), x, retain_graph=True)
    cross_entropy(second, y).backward()
    cross_entropy(plain(x)[1], y).backward()
    assert all(relative_error(a, b) <= 1e-12 for a, b in zip(gradients(model), gradients(plain), strict=True))


class Shell(nn.Module):
    """A module that is never called itself, as a LightningModule: its network is."""

    def __init__(self, net):
        super().__init__()
        self.net = net


@pytest.mark.filterwarnings("ignore:fngd. layer .* is used outside of the model")
def test_calls_from_outside_of_the_model_are_batches_of_their_own():
    shell, net = Shell(network()), network()
    fngd.FNGD(shell, lr=0.1, derive_steps=1)
    fngd.FNGD(net, lr=0.1, derive_steps=1)
    for call in (shell.net, net):
        total = 0.0
        for size in (4, 6):
            x, y = batch(size)
            total = total + cross_entropy(call(x), y)
        total.backward()
    assert all(relative_error(a, b) <= 1e-12 for a, b in zip(gradients(shell), gradients(net), strict=True))


def test_the_first_call_from_outside_of_the_model_is_warned_of():
    shell, (x, _) = Shell(network()), batch(4)
    fngd.FNGD(shell, lr=0.1, derive_steps=1)
    with pytest.warns(UserWarning, match=r"layer 'net\.\w+' is used outside of the model's forward pass"):
        shell.net(x)
    shell.net(x)  # said once: a second warning would be an error


def test_a_model_that_calls_itself_is_one_pass():
    class Recursive(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(5, 5)

        def forward(self, x, again=True):
            x = self.inner(x).tanh()
            return self(x[:, None].expand(-1, 2, -1), again=False).sum(1) if again else x

    torch.manual_seed(0)
    model = Recursive().double()
    plain, (x, y) = copy.deepcopy(model), batch(6)
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    cross_entropy(model(x), y).backward()
    assert relative_error(reference.flat(gradients(model)), natural_gradient(plain, x, y)) <= 1e-10


def test_steps_are_counted_when_the_first_layer_is_frozen_and_in_no_optimizer():
    model = network()
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with fngd.NaturalGradient(model, derive_steps=2) as natural:
        for _ in range(2):
            step(model, optimizer, *batch(6))
        assert natural.phase == "share"


def test_a_failed_constructor_leaves_the_model_as_it_was():
    model = network()
    first = fngd.FNGD(model, model[2].parameters(), lr=0.1, derive_steps=1)
    with pytest.raises(ValueError, match="already"):
        fngd.FNGD(model, lr=0.1, derive_steps=1)
    assert type(model[0]) is nn.Linear
    first.detach()
    assert type(model[2]) is nn.Linear


def test_a_copy_of_a_natural_gradient_counts_and_a_copy_of_a_detached_one_is_detached():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    natural = fngd.NaturalGradient(model, optimizer, derive_steps=2)
    twin, other, copied = copy.deepcopy((model, optimizer, natural))
    for _ in range(2):
        step(twin, other, *batch(6))
    assert (copied.phase, natural.phase) == ("share", "derive")
    copied.detach()
    natural.detach()
    again, _, gone = copy.deepcopy((model, optimizer, natural))
    assert type(again[0]) is nn.Linear
    gone.detach()


def test_a_batch_larger_than_a_single_shared_coefficient_is_refused_unless_the_policy_shares_one_number():
    for policy, refused in ((fngd.Shared(1), True), (fngd.Constant(1), False)):
        model = network()
        optimizer = fngd.FNGD(model, lr=0.0, policy=policy)
        step(model, optimizer, *batch(1))
        if refused:
            with pytest.raises(RuntimeError, match="batches of 1"):
                model(batch(8)[0])
        else:
            step(model, optimizer, *batch(8))


@pytest.mark.parametrize(
    ("module", "shape"), [(nn.Linear(4, 3), (4,)), (nn.Conv2d(2, 3, 3), (2, 5, 5)), (nn.Conv1d(4, 3, 2), (4, 6))]
)
def test_one_sample_without_a_batch_dimension_goes_through_the_model_itself(module, shape):
    model, batched = nn.Sequential(copy.deepcopy(module).double()), nn.Sequential(copy.deepcopy(module).double())
    x = torch.randn(shape, dtype=torch.float64)
    for m, value in ((model, x), (batched, x.unsqueeze(0))):
        fngd.FNGD(m, lr=0.1, derive_steps=1)
        m(value).square().sum().backward()
    assert all(relative_error(a, b) <= 1e-12 for a, b in zip(gradients(model), gradients(batched), strict=True))


def test_attention_of_one_sample_goes_through_the_model_itself():
    model = nn.MultiheadAttention(8, 2, batch_first=True).double()
    batched, x = copy.deepcopy(model), torch.randn(4, 8, dtype=torch.float64)
    for m, value in ((model, x), (batched, x.unsqueeze(0))):
        fngd.FNGD(m, lr=0.1, derive_steps=1)
        m(value, value, value)[0].square().sum().backward()
    assert all(relative_error(a, b) <= 1e-12 for a, b in zip(gradients(model), gradients(batched), strict=True))


@pytest.mark.parametrize(
    "masks",
    [
        {"attn_mask": torch.zeros(1, 4)},
        {"attn_mask": torch.zeros(4, 4, dtype=torch.int64)},
        {"key_padding_mask": torch.zeros(1, 4)},
        {"key_padding_mask": torch.zeros(3, 1)},
    ],
    ids=["row", "integers", "one sample", "one key"],
)
def test_attention_refuses_the_masks_that_torch_refuses(masks):
    model, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 4, 8)
    with pytest.raises((RuntimeError, AssertionError)):
        model(x, x, x, **masks)
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    with pytest.raises(RuntimeError, match="must be of shape"):
        model(x, x, x, **masks)


@pytest.mark.parametrize(
    ("module", "shape"), [(nn.Linear(7, 3), (3, 0, 7)), (nn.Linear(3, 2), (0, 3)), (nn.Conv1d(2, 3, 1), (0, 2, 4))]
)
def test_inputs_without_elements_have_zero_gradients(module, shape):
    model = nn.Sequential(copy.deepcopy(module))
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    model(torch.randn(shape)).sum().backward()
    assert all((p.grad == 0).all() for p in model.parameters())


def test_a_forward_keeps_its_signature():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def forward(self, input_ids, attention_mask=None):
            return self.inner(input_ids)

    model = Named()
    before = inspect.signature(model.forward)
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    assert inspect.signature(model.forward) == before


def test_ties_through_a_third_module_make_one_layer():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)).double()
    model[1].bias = model[0].bias
    model[2].weight, model[2].bias = model[1].weight, nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=1)
    assert len(optimizer.preconditioner.layers) == 1
    plain = copy.deepcopy(model)
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.randint(4, (5,))
    cross_entropy(model(x), y).backward()
    assert relative_error(reference.flat(gradients(model)), natural_gradient(plain, x, y)) <= 1e-10


def test_a_tied_module_whose_own_bias_is_added_later_is_in_the_same_layer():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
    model[1].weight = model[0].weight
    optimizer = fngd.FNGD(model, model[0].parameters(), lr=0.1, derive_steps=1)
    optimizer.add_param_group({"params": [model[1].bias]})
    plain, (x, y) = copy.deepcopy(model), (torch.randn(5, 4, dtype=torch.float64), torch.randint(4, (5,)))
    cross_entropy(model(x), y).backward()
    assert len(optimizer.preconditioner.layers) == 1
    assert relative_error(reference.flat(gradients(model)), natural_gradient(plain, x, y)) <= 1e-10


def test_a_layer_without_coefficients_is_warned_of_once_not_at_every_step():
    model = network()
    optimizer = fngd.FNGD(model, model[2].parameters(), lr=0.1, derive_steps=1)
    step(model, optimizer, *batch(6))
    optimizer.add_param_group({"params": model[0].parameters()})
    with pytest.warns(UserWarning, match="'0' had no finite gradient"):
        step(model, optimizer, *batch(6))
    step(model, optimizer, *batch(6))


def test_float64_is_left_alone_by_autocast_as_torch_leaves_it():
    model = network()
    plain = copy.deepcopy(model)
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(batch(4)[0]), plain(batch(4)[0]))


def test_one_name_may_be_excluded_without_a_list_and_steps_may_be_any_integer():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=np.int64(3), exclude="0")
    assert [layer.name for layer in optimizer.preconditioner.layers] == ["2"]


@pytest.mark.parametrize("bad", [{"lr": "fast"}, {"momentum": None}, {"dampening": "x"}], ids=str)
def test_a_setting_of_the_wrong_kind_is_refused_by_name(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=f"{name}="):
        fngd.FNGD(network(), **{"lr": 0.1, "derive_steps": 1, **bad})


@pytest.mark.parametrize(("entries", "held"), [(1 << 20, 1), (4 << 20, 0)])
def test_only_a_small_scratch_buffer_is_held_between_steps(entries, held):
    run = Run(Settings(), fngd.Shared(1), deriving=False)
    run.scratch.product(torch.ones(entries), torch.ones(1))
    assert len(run.scratch.memory.buffers) == 1
    run.end()
    assert len(run.scratch.memory.buffers) == held


def test_a_deriving_steps_memory_is_kept_where_the_next_one_comes_soon():
    for policy, kept in ((fngd.Shared(1), False), (fngd.Refreshed(10, 0.9), True), (fngd.Refreshed(100, 0.9), False)):
        run = Run(Settings(), policy, deriving=True)
        run.scratch.take("U", (4 << 20,), torch.float32, torch.device("cpu"))
        run.end()
        assert run.prepare(1)
        assert run.scratch.memory.buffers
        run.end()
        assert not run.prepare(2)
        assert bool(run.scratch.memory.buffers) == kept


def test_the_end_of_a_step_reaches_the_memory_of_every_thread():
    """On a GPU the backward pass runs in a thread of torch's."""
    run = Run(Settings(), fngd.Shared(1), deriving=False)
    x = torch.ones(4 << 20)

    def backward():
        run.scratch.product(x, torch.ones(1))
        run.scratch.products(x, "rows")
        return run.scratch.memory

    with ThreadPoolExecutor(1) as thread:
        held = thread.submit(backward).result()
        assert held.buffers
        assert held.inputs
        run.end()
        assert not held.inputs
        assert thread.submit(lambda: run.scratch.memory).result() is not held


def test_images_that_come_alone_are_remembered_once():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(0))
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=1)
    (layer,) = optimizer.preconditioner.layers
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(2, 5, 5)).sum().backward()
        optimizer.step()
    assert len(layer._operations) == 1
    assert len(layer.sharing._spread) == 1


@pytest.mark.parametrize("policy", [fngd.Fresh(), fngd.Shared(1), fngd.FromHead()], ids=["fresh", "shared", "head"])
def test_functorch_is_refused_rather_than_given_wrong_gradients(policy):
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(27, 2))
    optimizer, x = fngd.FNGD(model, lr=0.1, policy=policy), torch.randn(4, 2, 5, 5)
    model(x).square().mean().backward()
    optimizer.step()

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x,)).square().mean()

    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(loss)(dict(model.named_parameters()))
