"""After backward() in the derive phase, p.grad is (1/M) U c, and (1/λ) p.grad is (F + λI)⁻¹ g, for every case."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fngd
import reference
from cases import CASES
from reference import relative_error

ALPHA = 0.05


def derived(model, loss, inputs, targets, **kwargs):
    """The layers after one backward in the derive phase; the model is attached."""
    optimizer = fngd.FNGD(model, lr=0.1, alpha=ALPHA, derive_steps=1, **kwargs)
    loss(model(*inputs), targets).backward()
    return optimizer, optimizer.preconditioner.layers


def trained(layer):
    return [p for p in layer.parameters if p.requires_grad]


def twins(model, twin, parameters):
    """The parameters of a deep copy that correspond to these."""
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    table = {id(mine): theirs for mine, theirs in pairs}
    return [table[id(p)] for p in parameters]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_derived_gradient_is_the_natural_gradient(name, dtype, tolerance):
    case = CASES[name]
    model, inputs, targets = case.data(dtype)
    oracle, exact = copy.deepcopy(model).double(), [x.double() for x in inputs]
    _, layers = derived(model, case.loss, inputs, targets, batch_dim=case.batch_dim)
    assert len(layers) == case.layers or case.layers is None
    for layer in layers:
        if not trained(layer):
            assert all(p.grad is None for p in layer.parameters)
            continue
        parameters = twins(model, oracle, trained(layer))
        U = reference.alone(oracle, case.loss, exact, targets.double(), parameters, case.batch_dim)
        lam = reference.damping(U, ALPHA)
        gradient = reference.flat([p.grad for p in trained(layer)]).double()
        assert relative_error(gradient, U @ reference.coefficients(U, lam) / U.shape[1]) <= tolerance
        assert relative_error(gradient / lam, reference.natural_gradient(U, lam)) <= tolerance


@pytest.mark.parametrize("name", CASES)
def test_forward_and_input_gradient_are_those_of_the_plain_model(name):
    case = CASES[name]
    model, inputs, targets = case.data()
    plain, (x,) = copy.deepcopy(model), inputs
    fngd.FNGD(model, lr=0.1, derive_steps=1, batch_dim=case.batch_dim)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    output, expected = model(mine), plain(theirs)
    assert relative_error(output, expected) <= 1e-14
    case.loss(output, targets).backward()
    case.loss(expected, targets).backward()
    assert relative_error(mine.grad, theirs.grad) <= 1e-13


@pytest.mark.parametrize("name", CASES)
def test_shared_coefficients_weight_the_per_sample_gradients(name):
    case = CASES[name]
    model, inputs, targets = case.data()
    optimizer, layers = derived(model, case.loss, inputs, targets, batch_dim=case.batch_dim)
    optimizer.zero_grad()
    with torch.no_grad():
        optimizer.step()
    assert optimizer.phase == "share"
    oracle = copy.deepcopy(model)
    case.loss(model(*inputs), targets).backward()
    for layer in layers:
        if trained(layer):
            U = reference.alone(
                oracle, case.loss, inputs, targets, twins(model, oracle, trained(layer)), case.batch_dim
            )
            expected = U @ optimizer.coefficients[layer.name] / U.shape[1]
            assert relative_error(reference.flat([p.grad for p in trained(layer)]), expected) <= 1e-10


class Checkpointed(nn.Sequential):
    def __init__(self, *modules, reentrant):
        super().__init__(*modules)
        self.reentrant = reentrant

    def forward(self, x):
        for module in self:
            x = checkpoint(module, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("steps", [1, 3], ids=["derive", "share"])
def test_activation_checkpointing_changes_nothing(reentrant, steps):
    torch.manual_seed(0)
    parts = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 3)]
    plain = nn.Sequential(*copy.deepcopy(parts)).double()
    saved = Checkpointed(*copy.deepcopy(parts), reentrant=reentrant).double()
    x, y = torch.randn(7, 6, dtype=torch.float64, requires_grad=True), torch.randint(3, (7,))
    for model in (plain, saved):
        optimizer = fngd.FNGD(model, lr=0.1, derive_steps=2)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    for mine, theirs in zip(saved.parameters(), plain.parameters(), strict=True):
        assert relative_error(mine, theirs) <= 1e-13


def test_vmap_of_grad_agrees_with_the_library():
    """A second oracle, written by torch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)).double()
    x, y = torch.randn(6, 2, 5, 5, dtype=torch.float64), torch.randint(3, (6,))
    plain = copy.deepcopy(model)
    _, layers = derived(model, nn.functional.cross_entropy, [x], y)

    def loss(parameters, x, y):
        output = torch.func.functional_call(plain, parameters, (x.unsqueeze(0),))
        return nn.functional.cross_entropy(output, y.unsqueeze(0))

    parameters = {k: p.detach() for k, p in plain.named_parameters()}
    rows = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, y)
    for layer in layers:
        U = torch.cat([rows[f"{layer.name}.{key}"].flatten(1) for key in ("weight", "bias")], 1).T
        expected = U @ reference.coefficients(U, reference.damping(U, ALPHA)) / 6
        assert relative_error(reference.flat([p.grad for p in layer.parameters]), expected) <= 1e-10


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_a_batch_of_few_samples_is_solved_as_it_is(samples):
    torch.manual_seed(0)
    model = nn.Linear(7, 3).double()
    x, y = torch.randn(samples, 7, dtype=torch.float64), torch.randint(3, (samples,))
    U = reference.alone(model, nn.functional.cross_entropy, [x], y, list(model.parameters()))
    _, (layer,) = derived(model, nn.functional.cross_entropy, [x], y)
    expected = U @ reference.coefficients(U, reference.damping(U, ALPHA)) / samples
    assert relative_error(reference.flat([p.grad for p in layer.parameters]), expected) <= 1e-10


@pytest.mark.parametrize("build", [lambda: nn.Linear(7, 3), lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten())])
@pytest.mark.parametrize("policy", [fngd.Fresh(), fngd.Shared(1), fngd.Constant(1)], ids=str)
def test_an_empty_batch_has_zero_gradients_and_leaves_no_trace(build, policy):
    torch.manual_seed(0)
    model = build()
    optimizer = fngd.FNGD(model, lr=0.1, policy=policy)
    full = torch.randn(4, 7) if isinstance(model, nn.Linear) else torch.randn(4, 2, 3, 3)
    for _ in range(2):
        optimizer.zero_grad()
        model(full[:0]).sum().backward()
        assert all((p.grad == 0).all() for p in model.parameters())
        assert all(layer.batches == 1 for layer in optimizer.statistics().values())
        optimizer.zero_grad()
        model(full).sum().backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore:fngd. layer .* is used outside of the model")
def test_one_sample_without_a_batch_dimension_is_a_batch_of_one():
    torch.manual_seed(0)
    for module, shape in ((nn.Linear(4, 3), (4,)), (nn.Conv2d(2, 3, 3), (2, 5, 5)), (Attend(), (4, 8))):
        model = Outer(module.double())
        batched = copy.deepcopy(model)
        x = torch.randn(shape, dtype=torch.float64)
        fngd.FNGD(model, lr=0.1, derive_steps=1, alpha=ALPHA)
        fngd.FNGD(batched, lr=0.1, derive_steps=1, alpha=ALPHA)
        model.inner(x).square().sum().backward()
        batched.inner(x.unsqueeze(0)).square().sum().backward()
        for mine, theirs in zip(model.parameters(), batched.parameters(), strict=True):
            assert relative_error(mine.grad, theirs.grad) <= 1e-13


class Attend(nn.MultiheadAttention):
    def __init__(self):
        super().__init__(8, 2, batch_first=True)


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = _First(inner) if isinstance(inner, Attend) else inner


class _First(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]
