"""`FromHead` is training on (1/M) Σ c_m ℓ_m, with c from the output layer's per-sample gradients alone."""

import copy
import io
import pickle
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fngd
import reference

M, ALPHA = 6, 0.02


class Words(nn.Module):
    """A sequence model; its head may share the embedding's weight, or see all positions in one row."""

    def __init__(self, tied=False, folded=False, words=9):
        super().__init__()
        self.embed, self.norm = nn.Embedding(words, 5), nn.LayerNorm(5)
        self.mix, self.head = nn.Linear(5, 5), nn.Linear(5, words, bias=not tied)
        self.folded = folded
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        h = self.norm(torch.tanh(self.mix(self.embed(x))).cumsum(-2))
        return self.head(h.flatten(0, 1)).unflatten(0, h.shape[:2]) if self.folded else self.head(h)


class Pooled(nn.Module):
    """Attention below, and a 1×1 convolution as the head, with pooling above it."""

    def __init__(self):
        super().__init__()
        self.below = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Conv1d(8, 4, 1)

    def forward(self, x):
        return self.head(self.below(x).transpose(1, 2)).mean(2)


@dataclass
class Answer:
    scores: torch.Tensor
    note: str = "scores"


class Wrapped(nn.Module):
    """What a model returns is often no tensor."""

    def __init__(self, wrap):
        super().__init__()
        self.body, self.fc = nn.Linear(7, 5), nn.Linear(5, 4)
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.fc(torch.tanh(self.body(x))))


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 5)), nn.Linear(5, 4)
        self.reentrant = reentrant

    def forward(self, x):
        return self.fc(checkpoint(self.body, x.requires_grad_(), use_reentrant=self.reentrant))


def mlp(head=None):
    return nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 4) if head is None else head)


def convolutional():
    body = (nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Conv2d(3, 4, 2))
    return nn.Sequential(*body, nn.ReLU(inplace=True), nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 4))


def frozen(module):
    return module.requires_grad_(requires_grad=False)


MODELS = {
    "one layer": (lambda: nn.Linear(7, 4), ""),
    "perceptron": (mlp, "2"),
    "head without bias": (lambda: mlp(nn.Linear(6, 4, bias=False)), "2"),
    "frozen head": (lambda: mlp(frozen(nn.Linear(6, 4))), "2"),
    "frozen wide head": (lambda: mlp(frozen(nn.Linear(6, 17))), "2"),
    "log-softmax above the head": (lambda: nn.Sequential(*mlp(), nn.LogSoftmax(1)), "2"),
    "in-place function above the head": (lambda: nn.Sequential(*mlp(), nn.ELU(inplace=True)), "2"),
    "convolutions and batch norms": (convolutional, "7"),
    "attention, and a convolution as the head": (Pooled, "head"),
    "words": (Words, "head"),
    "many words": (lambda: Words(words=23), "head"),
    "many words with a tied head": (lambda: Words(tied=True, words=23), "head"),
    "many words in one row": (lambda: Words(folded=True, words=23), "head"),
    "words with a tied head": (lambda: Words(tied=True), "head"),
    "words in one row": (lambda: Words(folded=True), "head"),
    "words in one row with a tied head": (lambda: Words(tied=True, folded=True), "head"),
    "checkpoints": (lambda: Checkpointed(reentrant=False), "fc"),
    "reentrant checkpoints": (lambda: Checkpointed(reentrant=True), "fc"),
}
every_model = pytest.mark.parametrize("name", MODELS)
both_sides = pytest.mark.parametrize("rhs", ["ones", "residual"])


def case(name):
    """A model, its head's name, a batch that fits it."""
    torch.manual_seed(3)
    build, head = MODELS[name]
    model = build().double()
    if isinstance(model, Words):
        return model, head, torch.randint(9, (M, 5)), torch.randint(9, (M, 5))
    shape = (2, 5, 5) if name.startswith("convolutions") else (5, 8) if name.startswith("attention") else (7,)
    return model, head, torch.randn(M, *shape, dtype=torch.float64), torch.randint(4, (M,))


def losses(output, y):
    """ℓ_m: the mean cross-entropy of a sample, and of its positions if it has any; the samples' factors differ."""
    output = next(tensors(output))
    rows = F.cross_entropy(output.flatten(0, -2), y.flatten(), reduction="none").view(len(y), -1)
    return (rows * torch.linspace(1, 3, len(y), dtype=rows.dtype).unsqueeze(1)).mean(1)


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
        return
    inside = vars(value) if isinstance(value, Answer) else value
    for part in inside.values() if isinstance(inside, dict) else inside:
        if part is not None and not isinstance(part, str):
            yield from tensors(part)


def mean_loss(output, y):
    return losses(output, y).mean()


def expected_coefficients(model, head, x, y, rhs, alpha=ALPHA):
    """Each sample's own copy of the head → U → K → c of mean one."""
    plain = copy.deepcopy(model).requires_grad_()
    if hasattr(plain, "folded"):
        plain.folded = False  # the same numbers, and positions in a dimension of their own
    U = reference.copies(plain, plain.get_submodule(head), mean_loss, [x], y)
    K, r = reference.gram(U), torch.ones(len(y), dtype=torch.float64)
    if rhs == "residual":
        r = squared_output_gradients(copy.deepcopy(model).requires_grad_(), head, x, y)
        r = r / r.mean()
    lam = alpha * torch.linalg.matrix_norm(K)
    c = torch.linalg.inv(torch.eye(len(y), dtype=torch.float64) + K / (lam * len(y))) @ r
    return c / c.mean()


def squared_output_gradients(model, head, x, y):
    kept = []

    def keep(_module, _inputs, output):
        kept.append(output)
        return output.clone()  # what comes next may change it in place

    model.get_submodule(head).register_forward_hook(keep)
    (z,) = torch.autograd.grad(mean_loss(model(x), y), kept)
    return z.reshape(len(y), -1).square().sum(1)


def weighted_gradients(model, x, y, c):
    """Of (1/M) Σ c_m ℓ_m, by torch."""
    plain = copy.deepcopy(model)
    (c * losses(plain(x), y)).mean().backward()
    return {name: parameter.grad for name, parameter in plain.named_parameters()}


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def worst(actual, expected):
    assert {k for k, v in actual.items() if v is None} == {k for k, v in expected.items() if v is None}
    return max(reference.relative_error(actual[k], v) for k, v in expected.items() if v is not None)


def attached(model, rhs="ones", alpha=ALPHA, lr=0.1, **kwargs):
    return fngd.FNGD(model, lr=lr, policy=fngd.FromHead(alpha, rhs, **kwargs))


def stepped(model, optimizer, x, y):
    optimizer.zero_grad()
    mean_loss(model(x), y).backward()
    optimizer.step()


@every_model
@both_sides
def test_every_gradient_is_that_of_the_weighted_loss_from_the_first_step_on(name, rhs):
    model, head, x, y = case(name)
    optimizer = attached(model, rhs)
    for _ in range(3):
        c = expected_coefficients(model, head, x, y, rhs)
        expected = weighted_gradients(model, x, y, c)
        optimizer.zero_grad()
        mean_loss(model(x), y).backward()
        assert worst(gradients(model), expected) < 1e-10
        assert reference.relative_error(optimizer.coefficients[head], c) < 1e-10
        assert optimizer.coefficients[head].mean() == pytest.approx(1.0, abs=1e-12)
        assert c.std() > 1e-3
        optimizer.step()
    assert (optimizer.phase, list(optimizer.statistics())) == ("derive", [head])


@both_sides
def test_a_constant_factor_of_the_loss_changes_no_coefficient(rhs):
    found = []
    for factor in (1.0, 1e-30, 3e20):
        model, head, x, y = case("perceptron")
        optimizer = attached(model, rhs)
        (mean_loss(model(x), y) * factor).backward()
        found.append(optimizer.coefficients[head])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: {"loss": None, "scores": t},
        lambda t: (t, {"also": t.softmax(1)}),
        lambda t: [t],
        Answer,
    ],
    ids=["dict", "tuple of dicts", "list", "dataclass"],
)
def test_the_head_is_found_in_whatever_a_model_returns(wrap):
    model = Wrapped(wrap).double()
    x, y = torch.randn(M, 7, dtype=torch.float64), torch.randint(4, (M,))
    bare = copy.deepcopy(model)
    bare.wrap = lambda t: t
    c = expected_coefficients(bare, "fc", x, y, "ones")
    attached(model)
    mean_loss(model(x), y).backward()
    assert worst(gradients(model), weighted_gradients(bare, x, y, c)) < 1e-10


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.left, self.right = nn.Linear(7, 5), nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.left(h), self.right(h)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(7, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = self.body(x)
        return self.fc(h) + h


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(7, 5), nn.Linear(5, 4)

    def forward(self, x):
        return checkpoint(self.fc, self.body(x), use_reentrant=True)


class Temperature(nn.Sequential):
    def __init__(self):
        super().__init__(*mlp())
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return super().forward(x) * self.temperature


UNCLEAR = {
    "two heads": (TwoHeads, "reached through several layers: 'left', 'right'", ("left", "right")),
    "a residual branch": (Residual, "reached through several layers: 'body', 'fc'", ("body", "fc")),
    "a parameter above": (Temperature, "reached through 'temperature', which no supported layer holds", ("2",)),
    "a norm above": (lambda: nn.Sequential(*mlp(), nn.LayerNorm(4)), "reached through '3.weight', '3.bias'", ("2",)),
    "no supported layer": (lambda: nn.Sequential(nn.Linear(7, 5), Detached()), "no supported layer", ()),
    "a hidden graph": (Hidden, "use_reentrant=True, which hides", None),
}


class Detached(nn.Module):
    def forward(self, x):
        return x.detach().requires_grad_() * 2


@pytest.mark.parametrize("name", UNCLEAR)
def test_what_is_unclear_is_said_by_training_and_by_the_doctor(name):
    build, said, heads = UNCLEAR[name]
    x = torch.randn(M, 7)
    diagnosis = fngd.doctor(build(), x)
    assert said in diagnosis.head_objection
    assert f"FromHead needs head=…: {diagnosis.head_objection}." in str(diagnosis).splitlines()
    assert heads is None or diagnosis.heads == heads
    model = build()
    attached(model)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"fngd: FromHead needs to be told the head of .*head='\w+'") as error:
            model(x)
        assert said in str(error.value)


@pytest.mark.parametrize("head", ["left", "right"])
def test_a_head_that_is_named_is_taken_and_the_other_stays_plain(head):
    model = TwoHeads().double()
    x, y = torch.randn(M, 7, dtype=torch.float64), torch.randint(4, (M,))
    chosen, other = ("left", "right") if head == "left" else ("right", "left")
    twin = copy.deepcopy(model)
    optimizer = attached(model, head=head)
    sum(mean_loss(output, y) for output in model(x)).backward()
    c = optimizer.coefficients[head]
    outputs = dict(zip(("left", "right"), twin(x), strict=True))
    ((c * losses(outputs[chosen], y)).mean() + mean_loss(outputs[other], y)).backward()
    assert worst(gradients(model), gradients(twin)) < 1e-10
    assert not torch.equal(c, torch.ones(M))


@every_model
def test_a_head_that_is_named_does_what_one_that_is_found_does(name):
    model, head, x, y = case(name)
    twin = copy.deepcopy(model)
    for one, optimizer in ((model, attached(model)), (twin, attached(twin, head=head))):
        for _ in range(3):
            stepped(one, optimizer, x, y)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


@every_model
def test_the_doctor_names_the_head(name):
    model, head, x, _ = case(name)
    diagnosis = fngd.doctor(model, x)
    assert (diagnosis.heads, diagnosis.head_objection) == ((head,), "")
    assert f"Head for FromHead: {head!r}." in str(diagnosis).splitlines()


def test_the_doctor_knows_no_head_without_inputs():
    diagnosis = fngd.doctor(mlp())
    assert (diagnosis.heads, diagnosis.head_objection) == ((), "")
    assert "FromHead" not in str(diagnosis)
    assert "no layer that could be it" in str(fngd.doctor(nn.LayerNorm(3), torch.ones(2, 3)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"alpha": 0.0}, "alpha=0.0 must be a finite number above 0"),
        ({"alpha": "much"}, "alpha='much' must be a finite number above 0"),
        ({"alpha": True}, "alpha=True must be"),
        ({"alpha": float("nan")}, "alpha=nan must be"),
        ({"rhs": "twos"}, "rhs='twos' must be 'ones' or 'residual'"),
        ({"head": 2}, "head=2 must be the name of a module"),
    ],
)
def test_bad_arguments_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        fngd.FromHead(**{"alpha": 0.1, **arguments})


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("classifier", "head='classifier' names no module of the model.*could be the head: '3', '0'"),
        ("1", "head='1' cannot be the head: no rule for LayerNorm; these could be: '3', '0'"),
        ("4", "head='4' cannot be the head: it has no parameters of its own"),
        ("2", "head='2' cannot be the head: it holds, or is held by, another supported layer"),
        ("2.out_proj", "head='2.out_proj' cannot be the head: it holds, or is held by"),
    ],
)
def test_a_head_that_cannot_be_one_is_refused(head, said):
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.MultiheadAttention(4, 2), nn.Linear(4, 2), nn.Tanh())
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(ValueError, match=said):
        attached(model, head=head)
    assert [type(module) for module in model.modules()] == kinds


def test_a_model_without_a_layer_that_could_be_the_head_is_refused():
    with pytest.raises(ValueError, match="LayerNorm has no layer that FromHead could take for the head"):
        attached(nn.LayerNorm(3))


@pytest.mark.parametrize("arguments", [{"alpha": 0.3}, {"damping": 1.0}, {"scale_by_damping": True}], ids=str)
def test_a_damping_beside_that_of_the_policy_is_refused(arguments):
    with pytest.raises(ValueError, match=r"do not go with policy=FromHead\(alpha=0.1.*pass fngd.FromHead\(alpha\)"):
        fngd.FNGD(mlp(), lr=0.1, policy=fngd.FromHead(0.1), **arguments)


def test_a_head_used_twice_in_a_forward_pass_is_refused():
    class Twice(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + super().forward(-x)

    for head in (None, "2"):
        model = Twice(*mlp())
        attached(model, head=head)
        with pytest.raises(RuntimeError, match=r"layer '2' for the head: it is used more than once"):
            model(torch.randn(M, 7))
    assert "used more than once" in fngd.doctor(Twice(*mlp()), torch.randn(M, 7)).head_objection


def test_a_layer_that_sees_no_samples_matters_only_if_it_is_the_head():
    class Table(nn.Module):
        def __init__(self, last):
            super().__init__()
            self.table, self.fc, self.last = nn.Linear(3, 4), nn.Linear(4, 4), last

        def forward(self, x):
            rows = self.table(torch.eye(3)[:, :3].repeat(3, 1)[:7])
            return rows if self.last else self.fc(x[:, :4] + rows.sum(0))

    x, y = torch.randn(M, 7), torch.randint(4, (M,))
    model = Table(last=False)
    optimizer = attached(model)
    stepped(model, optimizer, x, y)
    assert list(optimizer.coefficients) == ["fc"]
    model = Table(last=True)
    attached(model)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="7 entries in dimension 0 are no multiple of the model's batch of 6"):
            model(x)


def test_a_layer_used_before_the_model_was_called_is_an_error():
    model = mlp()
    attached(model)
    output = model[2](torch.randn(M, 6))
    with pytest.raises(RuntimeError, match=r"does not know the head yet.*head='2'"):
        output.sum().backward()
    named = mlp()
    optimizer = attached(named, head="2")
    stepped(named[2], optimizer, torch.randn(M, 6), torch.randint(4, (M,)))
    assert optimizer.coefficients["2"].shape == (M,)


def everything(model):
    return [(name, type(module), sorted(vars(module))) for name, module in model.named_modules()]


@every_model
def test_after_the_first_step_only_the_head_is_not_plain_torch(name):
    model, head, x, y = case(name)
    before = everything(model)
    optimizer = attached(model)
    stepped(model, optimizer, x, y)
    changed = {new[0] for old, new in zip(before, everything(model), strict=True) if old != new}
    assert changed == {"", head}
    optimizer.detach()
    assert everything(model) == before


@pytest.mark.parametrize("steps", [0, 2])
def test_detaching_gives_plain_gradients(steps):
    model, _, x, y = case("perceptron")
    before = everything(model)
    with attached(model) as optimizer:
        for _ in range(steps):
            stepped(model, optimizer, x, y)
    assert everything(model) == before
    twin = copy.deepcopy(model)
    for one in (model, twin):
        one.zero_grad()
        mean_loss(one(x), y).backward()
    assert worst(gradients(model), gradients(twin)) == 0.0


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("head", [None, "7"])
def test_a_saved_state_goes_on_bit_for_bit(steps, head):
    model, _, x, y = case("convolutions and batch norms")
    optimizer = attached(model, head=head)
    for _ in range(steps):
        stepped(model, optimizer, x, y)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    resumed, *_ = case("convolutions and batch norms")
    resumed.load_state_dict(weights)
    second = attached(resumed)
    second.load_state_dict(state)
    assert second.preconditioner.step_count == steps
    for one, its in ((model, optimizer), (resumed, second)):
        for _ in range(2):
            stepped(one, its, x, y)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), resumed.parameters(), strict=True))
    assert optimizer.statistics() == second.statistics()


def test_a_state_from_before_the_first_step_forgets_what_came_after():
    model, _, x, y = case("perceptron")
    optimizer = attached(model)
    start = copy.deepcopy(optimizer.state_dict())
    stepped(model, optimizer, x, y)
    optimizer.load_state_dict(start)
    assert optimizer.statistics() == {}
    stepped(model, optimizer, x, y)
    assert optimizer.statistics()["2"].batches == 1


def test_a_state_of_another_head_or_policy_is_refused():
    model, _, x, y = case("perceptron")
    optimizer = attached(model)
    stepped(model, optimizer, x, y)
    other = TwoHeads().double()
    with pytest.raises(ValueError, match="of another model"):
        attached(other).preconditioner.load_state_dict(optimizer.preconditioner.state_dict())
    with pytest.raises(ValueError, match="of another model"):
        optimizer.load_state_dict(fngd.FNGD(mlp(), lr=0.1, derive_steps=2).state_dict())
    with pytest.raises(ValueError, match="of another model"):
        attached(mlp()).load_state_dict(fngd.FNGD(mlp(), lr=0.1, derive_steps=2).state_dict())


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_copy_goes_on_alone(clone, steps):
    model, head, x, y = case("convolutions and batch norms")
    optimizer = attached(model)
    for _ in range(steps):
        stepped(model, optimizer, x, y)
    twin, second = clone((model, optimizer))
    before = optimizer.statistics()
    stepped(twin, second, x, y)
    assert optimizer.statistics() == before
    stepped(model, optimizer, x, y)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    assert second.statistics()[head].batches == steps + 1


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", ["perceptron", "frozen head"])
def test_it_goes_under_adamw(named, name):
    model, head, x, y = case(name)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-2)
    natural = fngd.NaturalGradient(model, adamw if named else None, policy=fngd.FromHead(ALPHA, "residual"))
    c = expected_coefficients(model, head, x, y, "residual")
    expected = weighted_gradients(model, x, y, c)
    mean_loss(model(x), y).backward()
    assert worst(gradients(model), expected) < 1e-10
    adamw.step()
    assert (natural.step_count, natural.phase, list(natural.coefficients)) == (1, "derive", [head])
    natural.detach()


def test_accumulated_batches_have_coefficients_of_their_own():
    model, _, x, y = case("perceptron")
    twin = copy.deepcopy(model)
    optimizer = attached(model)
    parts = [(x[:4], y[:4]), (x[4:], y[4:])]
    expected = [weighted_gradients(twin, *part, expected_coefficients(twin, "2", *part, "ones")) for part in parts]
    total = {name: expected[0][name] + expected[1][name] for name in expected[0]}
    for part in parts:
        mean_loss(model(part[0]), part[1]).backward()
    assert worst(gradients(model), total) < 1e-10
    assert optimizer.coefficients["2"].shape == (4,)
    optimizer.zero_grad()
    sum(mean_loss(model(part[0]), part[1]) for part in parts).backward()
    assert worst(gradients(model), total) < 1e-10


@both_sides
def test_samples_may_come_second(rhs):
    model = mlp().double()
    x, y = torch.randn(M, 3, 7, dtype=torch.float64), torch.randint(4, (M, 3))
    c = expected_coefficients(model, "2", x, y, rhs)
    expected = weighted_gradients(model, x, y, c)
    fngd.FNGD(model, lr=0.1, policy=fngd.FromHead(ALPHA, rhs), batch_dim=1)
    mean_loss(model(x.transpose(0, 1)).transpose(0, 1), y).backward()
    assert worst(gradients(model), expected) < 1e-10


def test_eval_mode_and_no_grad_are_plain_and_look_for_nothing():
    model, _, x, y = case("perceptron")
    optimizer = attached(model)
    with torch.no_grad():
        model(x)
    model.eval()
    mean_loss(model(x), y).backward()
    twin = copy.deepcopy(model)
    twin.zero_grad()
    mean_loss(twin(x), y).backward()
    assert worst(gradients(model), gradients(twin)) == 0.0
    assert optimizer.coefficients == {}
    model.train()
    stepped(model, optimizer, x, y)
    assert list(optimizer.coefficients) == ["2"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_nearly_the_same_coefficients(dtype):
    model, head, x, y = case("convolutions and batch norms")
    c = expected_coefficients(model, head, x, y, "ones")
    model = model.float()
    optimizer = attached(model)
    with torch.autocast("cpu", dtype):
        loss = mean_loss(model(x.float()).float(), y)
    loss.backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
    assert optimizer.coefficients[head].dtype == torch.float32
    torch.testing.assert_close(optimizer.coefficients[head].double(), c, rtol=0, atol=0.1)


def test_float32_is_enough():
    model, head, x, y = case("convolutions and batch norms")
    c = expected_coefficients(model, head, x, y, "residual")
    model = model.float()
    optimizer = attached(model, "residual")
    mean_loss(model(x.float()), y).backward()
    torch.testing.assert_close(optimizer.coefficients[head].double(), c, rtol=1e-4, atol=1e-4)


@both_sides
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_batch_that_is_not_finite_takes_the_plain_gradient_and_is_counted(rhs, bad):
    model, head, x, y = case("perceptron")
    optimizer = attached(model, rhs, lr=0.0)
    stepped(model, optimizer, x, y)
    before = optimizer.coefficients[head]
    twin = copy.deepcopy(model)
    factors = torch.ones(M, dtype=torch.float64)
    factors[1] = bad
    for one in (model, twin):
        one.zero_grad()
        (factors * losses(one(x), y)).mean().backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, equal_nan=True)
    with pytest.warns(UserWarning, match="NaN or Inf in the gradients of 1 layers, '2' first"):
        optimizer.step()
    assert optimizer.statistics()[head].skipped == 1
    assert torch.equal(optimizer.coefficients[head], before)


@both_sides
def test_no_gradient_at_all_gives_ones(rhs):
    model, head, x, y = case("perceptron")
    optimizer = attached(model, rhs)
    (mean_loss(model(x), y) * 0).backward()
    assert torch.equal(optimizer.coefficients[head], torch.ones(M, dtype=torch.float64))
    assert optimizer.statistics()[head].skipped == 0


def test_residuals_that_cannot_be_scaled_to_mean_one_give_the_plain_gradient():
    """All gradients along one line, one sample ten times the others: the mean of c would be below zero."""
    model = nn.Linear(1, 1, bias=False).double()
    optimizer = fngd.FNGD(model, lr=0.1, policy=fngd.FromHead(1e-4, "residual"))
    z = torch.full((128, 1), 0.1, dtype=torch.float64)
    z[0] = 1.0
    (model(torch.ones(128, 1, dtype=torch.float64)) * z).sum().backward()
    assert model.weight.grad.item() == pytest.approx(z.sum().item())
    with pytest.warns(UserWarning, match="a mean near zero"):
        optimizer.step()


def test_an_empty_batch_passes():
    model = mlp()
    optimizer = attached(model)
    model(torch.randn(0, 7)).sum().backward()
    assert model[0].weight.grad.abs().sum() == 0
    assert optimizer.coefficients == {}


def test_double_backward_is_refused():
    model, _, x, y = case("perceptron")
    attached(model, head="2")
    loss = mean_loss(model(x), y)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


def test_groups_may_come_in_later_and_the_head_need_not_be_trained():
    model, head, x, y = case("perceptron")
    optimizer = fngd.FNGD(model, model[0].parameters(), lr=0.1, policy=fngd.FromHead(ALPHA))
    c = expected_coefficients(model, head, x, y, "ones")
    expected = weighted_gradients(model, x, y, c)
    mean_loss(model(x), y).backward()
    assert worst(gradients(model), expected) < 1e-10
    optimizer.add_param_group({"params": model[2].parameters()})
    optimizer.step()
    assert list(optimizer.coefficients) == [head]


def test_residual_coefficients_spare_the_samples_that_are_fitted():
    model, head, x, y = case("perceptron")
    optimizer = attached(model, "residual", alpha=10.0)
    z = squared_output_gradients(model, head, x, y)
    mean_loss(model(x), y).backward()
    assert torch.equal(optimizer.coefficients[head].argsort(), z.argsort())


def test_gram_matrices_of_the_head_can_be_watched():
    model, head, x, y = case("perceptron")
    optimizer = attached(model)
    seen = {}
    optimizer.preconditioner.watch(seen.__setitem__)
    mean_loss(model(x), y).backward()
    assert list(seen) == [head]
    assert torch.linalg.matrix_norm(seen[head]) == pytest.approx(1.0)


def test_a_head_may_be_named_as_the_wrapped_model_names_it():
    model = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Tanh(), nn.Linear(5, 3)))
    model[1] = torch.compile(model[1], backend="eager")
    wrapped = torch.compile(model, backend="eager")
    name = next(reversed(dict(wrapped.named_modules())))
    assert name.count("_orig_mod") == 2
    (layer,) = fngd.FNGD(wrapped, lr=0.1, policy=fngd.FromHead(head=name)).preconditioner.layers
    assert layer.name == "1.1"
