"""The model stays the user's: keys, copies, pickles, modes and what detach() leaves behind."""

import contextlib
import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fngd
from cases import CASES


def network():
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(27, 4))


def everything(model):
    """All that can be seen of a model: classes, attributes, hooks."""
    return [(name, type(module), sorted(vars(module))) for name, module in model.named_modules()]


def step(model, optimizer=None):
    cross_entropy(model(torch.randn(5, 2, 5, 5)), torch.randint(4, (5,))).backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", CASES)
def test_detach_gives_the_model_back_as_it_was(name):
    model, inputs, targets = CASES[name].data()
    before, state = everything(model), {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=1, batch_dim=CASES[name].batch_dim)
    CASES[name].loss(model(*inputs), targets).backward()
    optimizer.detach()
    assert everything(model) == before
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_leaving_a_with_detaches_even_after_an_error():
    model = network()
    before = everything(model)
    with contextlib.suppress(KeyError), fngd.FNGD(model, lr=0.1, derive_steps=1) as optimizer:
        raise KeyError(optimizer.phase)
    assert everything(model) == before


def test_a_detached_optimizer_goes_on_as_sgd():
    model, twin = network(), network()
    twin.load_state_dict(model.state_dict())
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=1)
    optimizer.detach()
    plain = torch.optim.SGD(twin.parameters(), lr=0.1, fused=True)
    for m, o in ((model, optimizer), (twin, plain)):
        torch.manual_seed(1)
        step(m, o)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


def test_attaching_changes_neither_keys_nor_classes_nor_how_a_model_prints():
    model = network()
    keys, text = list(model.state_dict()), str(model)
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    assert list(model.state_dict()) == keys
    assert str(model) == text
    assert isinstance(model[0], nn.Conv2d)
    assert isinstance(model, nn.Sequential)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_a_copy_of_an_attached_model_is_a_plain_model(clone):
    model = network()
    before = everything(model)
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=2)
    step(model, optimizer)
    twin = clone(model)
    assert everything(twin) == before
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_saved_model_loads_where_the_library_is_not():
    model = network()
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert b"fngd" not in buffer.getvalue()


@pytest.mark.parametrize("policy", [fngd.Fresh(), fngd.Shared(1)], ids=str)
def test_eval_and_no_grad_run_torchs_own_forward(policy, monkeypatch):
    model = network()
    optimizer = fngd.FNGD(model, lr=0.1, policy=policy)
    step(model, optimizer)

    def forbidden(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr("fngd.layers.base.Layer.apply", forbidden)
    x = torch.randn(5, 2, 5, 5)
    with torch.no_grad():
        model(x)
    with torch.inference_mode():
        model(x)
    assert model.eval()(x).requires_grad


def test_nothing_outlives_the_optimizer_and_the_model():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=1)
    step(model, optimizer)
    step(model, optimizer)
    optimizer.detach()
    watch = weakref.ref(optimizer.preconditioner), weakref.ref(model)
    del optimizer, model
    gc.collect()
    assert [reference() for reference in watch] == [None, None]


def test_attaching_a_thousand_times_leaves_no_trace():
    model = network()
    before = everything(model)
    for _ in range(1000):
        fngd.FNGD(model, lr=0.1, derive_steps=1).detach()
    assert everything(model) == before


def test_a_model_can_be_attached_once_only():
    model = network()
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    with pytest.raises(ValueError, match=r"already.*fngd\.detach\(model\)"):
        fngd.FNGD(model, lr=0.1, derive_steps=1)
    fngd.detach(model)
    fngd.FNGD(model, lr=0.1, derive_steps=1)


def test_two_optimizers_share_a_model_layer_by_layer():
    model = network()
    head = fngd.FNGD(model, model[4].parameters(), lr=0.1, derive_steps=1)
    body = fngd.FNGD(model, [*model[0].parameters(), *model[1].parameters()], lr=0.2, derive_steps=2)
    step(model)
    assert set(head.coefficients) == {"4"}
    assert set(body.coefficients) == {"0"}
    head.step()
    body.step()
    assert (head.phase, body.phase) == ("share", "derive")
    head.detach()
    assert type(model[4]) is nn.Linear
    assert type(model[0]) is not nn.Conv2d


def test_another_librarys_class_swap_on_top_survives_detach():
    model = network()
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=1)
    wrapped = type("Wrapped", (type(model[4]),), {})
    model[4].__class__ = wrapped
    optimizer.detach()
    assert type(model[4]) is wrapped
    step(model)
    assert "_fngd" not in vars(model[4])
