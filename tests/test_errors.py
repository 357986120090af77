"""Bad input as data: each ends in an error that gives name, value, rule and way out."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fngd

BAD = [
    ({"alpha": 0.0}, r"alpha=0\.0 must be a finite number above 0"),
    ({"alpha": -1}, r"alpha=-1 must be"),
    ({"alpha": float("nan")}, r"alpha=nan must be"),
    ({"alpha": float("inf")}, r"alpha=inf must be"),
    ({"alpha": "large"}, r"alpha='large' must be"),
    ({"alpha": True}, r"alpha=True must be"),
    ({"damping": 0}, r"damping=0 must be a finite number above 0"),
    ({"damping": -0.3}, r"damping=-0\.3 must be"),
    ({"derive_steps": 0}, r"derive_steps=0 must be a whole number of steps, at least 1; len\(loader\)"),
    ({"derive_steps": 2.5}, r"derive_steps=2\.5 must be"),
    ({"derive_steps": True}, r"derive_steps=True must be"),
    ({"derive_steps": None}, r"derive_steps is missing.*len\(loader\).*fngd\.Fresh\(\)"),
    ({"derive_steps": 3, "policy": fngd.Fresh()}, r"derive_steps=3 and policy=Fresh\(\) exclude each other"),
    ({"derive_steps": None, "policy": "fresh"}, r"policy='fresh' must be a policy object"),
    ({"loss_reduction": "none"}, r"loss_reduction='none' must be 'mean' or 'sum'"),
    ({"batch_dim": -1}, r"batch_dim=-1 must be a dimension counted from the front"),
    ({"batch_dim": 0.5}, r"batch_dim=0\.5 must be"),
    ({"gram_budget": 0}, r"gram_budget=0 must be a number of bytes"),
    ({"gram_route": "shortest"}, r"gram_route=.shortest. must be one of pairwise, pixels"),
    ({"exclude": ["head"]}, r"exclude='head' names no module.*named_modules"),
    ({"lr": -0.1}, r"lr=-0\.1 must be a finite number, 0 or above"),
    ({"lr": float("nan")}, r"lr=nan must be"),
    ({"momentum": -0.9}, r"momentum=-0\.9 must be"),
    ({"weight_decay": -1e-4}, r"weight_decay=-0\.0001 must be"),
    ({"dampening": float("inf")}, r"dampening=inf must be a finite number"),
    ({"nesterov": True}, r"nesterov=True needs momentum above 0 and dampening 0, but momentum=0\.0"),
    ({"nesterov": True, "momentum": 0.9, "dampening": 0.1}, r"nesterov=True needs.*dampening=0\.1"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[str(arguments) for arguments, _ in BAD])
def test_a_hyperparameter_out_of_range_is_refused_by_name(arguments, message):
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=message):
        fngd.FNGD(model, **{"lr": 0.1, "derive_steps": 5, **arguments})
    assert type(model) is nn.Linear


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fngd.Refreshed(0, 0.9), r"every=0 must be a whole number"),
        (lambda: fngd.Refreshed(10, 1.0), r"decay=1\.0 must be at least 0 and below 1"),
        (lambda: fngd.Refreshed(10, -0.1), r"decay=-0\.1 must be"),
        (lambda: fngd.Shared(-1), r"derive_steps=-1 must be"),
        (lambda: fngd.Constant(0), r"derive_steps=0 must be"),
    ],
)
def test_a_policy_out_of_range_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_parameters_in_the_place_of_the_model_are_refused():
    with pytest.raises(TypeError, match=r"model=generator must be a torch\.nn\.Module: FNGD\(model, lr="):
        fngd.FNGD(nn.Linear(3, 2).parameters(), lr=0.1, derive_steps=1)


def test_a_model_without_supported_layers_is_refused():
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4))
    with pytest.raises(ValueError, match=r"Sequential has no layer to precondition: supported are Conv1d.*doctor"):
        fngd.FNGD(model, lr=0.1, derive_steps=1)
    assert type(model) is nn.Sequential


def test_a_batch_larger_than_the_shared_coefficients_is_refused():
    model = nn.Sequential(nn.Linear(3, 2))
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=1)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"'0' meets a batch of 5 samples.*\(5, 3\).*batches of 4.*Constant"):
        model(torch.randn(5, 3))


class Table(nn.Module):
    """A linear layer on something that has nothing to do with the batch."""

    def __init__(self):
        super().__init__()
        self.bias_of_positions, self.head = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(x) + self.bias_of_positions(torch.ones(7, 2)).sum(0)


def test_a_layer_whose_input_does_not_fit_the_batch_is_named_with_shape_and_remedy():
    model = Table()
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    pattern = r"'bias_of_positions'.*\(7, 2\).*no multiple of.*batch of 4.*batch_dim.*exclude=\['bias_of_positions'\]"
    with pytest.raises(RuntimeError, match=pattern):
        model(torch.randn(4, 3))
    fngd.detach(model)
    fngd.FNGD(model, lr=0.1, derive_steps=1, exclude=["bias_of_positions"])
    model(torch.randn(4, 3)).sum().backward()


@pytest.mark.parametrize("policy", [fngd.Fresh(), fngd.Shared(1)], ids=str)
def test_double_backward_is_refused(policy):
    model = nn.Linear(3, 2)
    optimizer = fngd.FNGD(model, lr=0.1, policy=policy)
    x, y = torch.randn(4, 3, requires_grad=True), torch.randint(2, (4,))
    cross_entropy(model(x), y).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"double backward.*detach\(\)"):
        torch.autograd.grad(cross_entropy(model(x), y), x, create_graph=True)


def test_a_state_of_another_optimizer_or_model_is_refused():
    model = nn.Linear(3, 2)
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=1)
    with pytest.raises(ValueError, match=r"no entry 'natural_gradient'.*torch\.optim\.SGD"):
        optimizer.load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1).state_dict())
    other = fngd.FNGD(nn.Sequential(nn.Linear(3, 2)), lr=0.1, derive_steps=1)
    with pytest.raises(ValueError, match=r"another model: 2 layers"):
        optimizer.load_state_dict(other.state_dict())


def test_an_attention_used_in_overlapping_ways_is_refused():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x):
            return self.inner(x, x, x)[0] + self.inner(x, x.sin(), x.sin())[0]

    model = Both()
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    loss = model(torch.randn(3, 2, 4)).sum()
    with pytest.raises(RuntimeError, match=r"'inner'.*overlapping.*exclude=\['inner'\]"):
        loss.backward()


def test_a_causal_hint_without_a_mask_is_refused_as_torch_does():
    model = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.randn(3, 2, 4)
    with pytest.raises(RuntimeError, match="attn_mask"):
        model(x, x, x, is_causal=True)
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    with pytest.raises(RuntimeError, match="attn_mask"):
        model(x, x, x, is_causal=True)
