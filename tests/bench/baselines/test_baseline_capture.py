"""What is preconditioned and when it is measured; the model stays the user's."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from baseline_cases import METHODS, data, differentiate, images, make, network, same, step
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.parametrize("method", METHODS)


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(self.second(self.first(x).tanh()).tanh())


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def grouped():
    return nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 3))


PLAIN = {
    "attention": (Attention, (5, 4), ("head",), {"attention": "MultiheadAttention", "attention.out_proj": "exactly"}),
    "tied": (Tied, (5,), ("head",), {"first": "shares a parameter", "second": "shares a parameter"}),
    "grouped": (grouped, (2, 6, 6), ("2",), {"0": "groups=2"}),
    "batchnorm": (images, (2, 6, 6), ("0", "3", "6"), {"1": "BatchNorm2d"}),
    "subclass": (lambda: nn.Sequential(Scaled(5, 4), nn.Linear(4, 3)), (5,), ("1",), {"0": "Scaled"}),
}


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_not_preconditioned_is_listed_and_takes_sgds_step(method, name):
    build, shape, layers, reasons = PLAIN[name]
    model = build()
    twin = copy.deepcopy(model)
    optimizer = make(method, model)
    plain = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, fused=True)
    assert optimizer.preconditioned == layers
    assert set(optimizer.plain) == set(reasons)
    assert all(reason in optimizer.plain[module] for module, reason in reasons.items())
    step(model, optimizer, shape=shape)
    step(twin, plain, shape=shape)
    for module in reasons:
        for key, p in model.get_submodule(module).named_parameters(recurse=False):
            assert torch.equal(p, twin.get_submodule(module).get_parameter(key))
    for module in layers:  # not their biases: before BatchNorm these have no gradient but what rounding leaves
        assert not torch.equal(model.get_submodule(module).weight, twin.get_submodule(module).weight)


def test_a_layer_that_is_never_called_takes_the_plain_gradient(method):
    model = network()
    model.add_module("unused", nn.Linear(2, 2))
    model.forward = lambda x: nn.Sequential.forward(model[:3], x)
    optimizer = make(method, model)
    step(model, optimizer)
    model.unused.weight.grad = torch.ones(2, 2)
    before = model.unused.weight.clone()
    optimizer.step()
    assert torch.allclose(model.unused.weight, before - 0.1 * (1 + 1e-3 * before))


def test_evaluation_is_not_measured(method):
    model = network()
    optimizer = make(method, model)
    model.eval()
    model(data()[0])
    model.train()
    with torch.no_grad():
        model(data()[0])
    model(data()[0])  # with a graph, but never differentiated
    optimizer.step()
    assert optimizer.states == {}


def test_nothing_of_a_batch_is_kept_after_the_step(method):
    model = images()
    optimizer = make(method, model)
    x, y = data(shape=(2, 6, 6))
    seen = []

    def keep(_module, args, output):
        seen.extend(weakref.ref(t.untyped_storage()) for t in (args[0], output))

    handle = model[3].register_forward_hook(keep)
    differentiate(model, x, y)
    optimizer.step()
    handle.remove()
    gc.collect()
    assert [ref() for ref in seen] == [None, None]
    assert optimizer._capture.take() == {}


def test_a_skipped_step_leaves_nothing_behind_once_gradients_are_zeroed(method):
    model, other = network(), network()
    optimizer, reference = make(method, model), make(method, other)
    differentiate(model, *data(7))
    for seed in range(2):
        step(model, optimizer, seed)
        step(other, reference, seed)
    assert same(model, other)


def test_statistics_that_are_not_finite_are_not_folded_in(method):
    model = network()
    optimizer = make(method, model, **({"statistics_every": 1} if method == "kfac" else {}))
    step(model, optimizer, 0)
    kept = copy.deepcopy(optimizer.states)
    weights = copy.deepcopy(model.state_dict())
    x, y = data(1)
    x[0, 0] = float("nan")
    optimizer.zero_grad()
    differentiate(model, x, y)
    optimizer.step()
    for name, state in optimizer.states.items():
        assert torch.equal(state.inputs, kept[name].inputs)
        assert torch.equal(state.outputs, kept[name].outputs)
        assert state.batches == 1
    model.load_state_dict(weights)
    optimizer.state.clear()
    step(model, optimizer, 2)
    assert all(p.isfinite().all() for p in model.parameters())


def test_zero_grad_between_forward_and_backward_changes_nothing(method):
    model, other = network(), network()
    optimizer, reference = make(method, model), make(method, other)
    loss = nn.functional.cross_entropy(model(data()[0]), data()[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step(other, reference)
    assert same(model, other)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_changes_nothing(method, use_reentrant):
    class Checkpointed(nn.Sequential):
        def forward(self, x):
            return self[2](checkpoint(lambda t: self[1](self[0](t)), x, use_reentrant=use_reentrant))

    model, other = Checkpointed(*network()), network()
    optimizer, reference = make(method, model), make(method, other)
    x, y = data()
    for _ in range(3):
        optimizer.zero_grad()
        differentiate(model, x.clone().requires_grad_(), y)
        optimizer.step()
        step(other, reference)
    assert same(model, other)


def test_inputs_by_keyword_are_measured(method):
    model = nn.Linear(5, 3)
    optimizer = make(method, model)
    model(input=torch.randn(4, 5)).square().mean().backward()
    optimizer.step()
    assert set(optimizer.states) == {""}


@pytest.mark.parametrize(("layer", "shape"), [(nn.Linear(5, 3), (5,)), (nn.Conv2d(2, 3, 3), (2, 4, 4))])
def test_a_single_sample_without_its_dimension_is_measured(method, layer, shape):
    model = nn.ModuleList([copy.deepcopy(layer)])
    optimizer = make(method, model)
    x = torch.randn(*shape)
    model[0](x).square().sum().backward()
    optimizer.step()
    other = nn.ModuleList([copy.deepcopy(layer)])
    reference = make(method, other)
    other[0](x.unsqueeze(0)).square().sum().backward()
    reference.step()
    assert torch.allclose(optimizer.states["0"].outputs, reference.states["0"].outputs)
    assert torch.allclose(optimizer.states["0"].inputs, reference.states["0"].inputs)


def test_attaching_changes_neither_keys_nor_how_a_model_prints(method):
    model = images()
    keys, text = list(model.state_dict()), str(model)
    make(method, model)
    assert (list(model.state_dict()), str(model)) == (keys, text)


def test_detach_removes_the_hooks_and_goes_on_as_sgd(method):
    model, twin = network(), network()
    optimizer = make(method, model)
    assert hooks(model) == 3
    optimizer.detach()
    assert hooks(model) == 0
    plain = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, fused=True)
    for seed in range(2):
        step(model, optimizer, seed)
        step(twin, plain, seed)
    assert same(model, twin)
    copied = copy.deepcopy((model, optimizer))
    assert hooks(copied[0]) == 0


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_a_copy_of_the_model_alone_is_not_measured(method, clone):
    model = network()
    optimizer = make(method, model)
    twin = clone(model)
    differentiate(twin, *data())
    optimizer.step()
    assert optimizer.states == {}
    other = make(method, twin)
    assert hooks(twin) == 3
    other.detach()
    assert hooks(twin) == 0


def test_a_forgotten_optimizer_is_not_kept_alive_by_its_model(method):
    model = network()
    optimizer = make(method, model)
    step(model, optimizer)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    differentiate(model, *data())
