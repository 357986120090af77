"""A sample is what enters the model: its forward pass, its training step, or a forward put on the instance says it."""

import copy
from collections import UserDict

import pytest
import torch
from torch import nn

import fngd
import reference
from fngd.layers.run import batch_size
from reference import relative_error

M, T, D = 4, 3, 5
SEQUENCES = torch.zeros(M, T)


@pytest.mark.parametrize(
    ("inputs", "dim", "expected"),
    [
        ((SEQUENCES, {}), 0, M),
        ((SEQUENCES, {}), 1, T),
        (("text", 7, [SEQUENCES], {}), 0, M),
        (({"input_ids": SEQUENCES, "labels": torch.zeros(M)},), 0, M),
        (({"position_ids": torch.zeros(1, T), "input_ids": SEQUENCES},), 0, M),
        (({"num_items_in_batch": torch.tensor(9), "pixel_values": torch.zeros(M, 3, 2, 2)},), 0, M),
        (({"input_ids": torch.zeros(1, T), "labels": torch.zeros(1, T)},), 0, 1),
        ((UserDict(lengths=torch.zeros(()), input_ids=SEQUENCES), 0), 0, M),
        ((torch.zeros(1, D), {"table": torch.zeros(9, D)}), 0, 1),
        ((torch.zeros(M), {"x": torch.zeros(T, M, D)}), 1, M),
        (({"flag": True},), 0, None),
    ],
)
def test_the_batch_is_found_among_what_a_model_is_called_with(inputs, dim, expected):
    assert batch_size(inputs, dim) == expected


class Net(nn.Module):
    """One layer is used twice, one sees (M·T, D)."""

    def __init__(self):
        super().__init__()
        self.twice, self.flat = nn.Linear(D, D), nn.Linear(D, 2)

    def forward(self, x):
        x = self.twice(self.twice(x).tanh())
        return self.flat(x.flatten(0, 1).tanh()).view(*x.shape[:2], 2).mean(1)


class Stepped(nn.Module):
    """A model that is trained by its own method, as Lightning's are."""

    def __init__(self, way):
        super().__init__()
        self.net, self.way = Net(), way

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        output = {"self": self, "net": self.net, "parts": self.parts}[self.way](batch["x"])
        return nn.functional.mse_loss(output, batch["y"])

    def parts(self, x):
        x = self.net.twice(self.net.twice(x).tanh())
        return self.net.flat(x.flatten(0, 1).tanh()).view(*x.shape[:2], 2).mean(1)


@pytest.fixture
def batch():
    return {"x": torch.randn(M, T, D).double(), "y": torch.randn(M, 2).double()}


def assert_natural(net, oracle, batch):
    """Each layer's gradient is (1/M) U c, with U from each sample alone."""
    for mine, theirs in zip(net.children(), oracle.children(), strict=True):
        U = reference.alone(oracle, nn.functional.mse_loss, [batch["x"]], batch["y"], list(theirs.parameters()))
        expected = U @ reference.coefficients(U, reference.damping(U, 0.05)) / M
        assert relative_error(reference.flat([p.grad for p in mine.parameters()]), expected) <= 1e-10


@pytest.mark.parametrize(
    ("way", "root"), [("self", "model"), ("net", "model"), ("parts", "model"), ("self", "net"), ("net", "net")]
)
def test_a_training_step_of_the_models_own_knows_its_samples(way, root, batch):
    model = Stepped(way).double()
    oracle = copy.deepcopy(model.net)
    optimizer = fngd.FNGD({"model": model, "net": model.net}[root], lr=0.1, alpha=0.05, derive_steps=1)
    model.training_step(batch, 0).backward()
    assert_natural(model.net, oracle, batch)
    c = {name.removeprefix("net."): value for name, value in optimizer.coefficients.items()}
    optimizer.step()
    optimizer.zero_grad()
    oracle.load_state_dict(model.net.state_dict())
    assert optimizer.phase == "share"
    model.training_step(batch, 1).backward()
    for name, module in oracle.named_children():
        U = reference.alone(oracle, nn.functional.mse_loss, [batch["x"]], batch["y"], list(module.parameters()))
        mine = reference.flat([p.grad for p in model.net.get_submodule(name).parameters()])
        assert relative_error(mine, U @ c[name] / M) <= 1e-10


def test_a_forward_pass_inside_of_a_training_step_is_a_batch_of_its_own(batch):
    class Chunked(Stepped):
        def training_step(self, batch, batch_idx):
            halves = zip(batch["x"].chunk(2), batch["y"].chunk(2), strict=True)
            return sum(nn.functional.mse_loss(self(x), y) for x, y in halves) / 2

    model = Chunked("self").double()
    plain = copy.deepcopy(model)
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    model.training_step(batch, 0).backward()
    fngd.FNGD(plain, lr=0.1, derive_steps=1)
    for x, y in zip(batch["x"].chunk(2), batch["y"].chunk(2), strict=True):
        (nn.functional.mse_loss(plain(x), y) / 2).backward()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(relative_error(p.grad, q.grad) <= 1e-14 for p, q in pairs)


def test_the_head_is_found_through_the_training_steps_loss(batch):
    model = Stepped("net").double()
    optimizer = fngd.FNGD(model, lr=0.1, policy=fngd.FromHead())
    model.training_step(batch, 0).backward()
    assert list(optimizer.coefficients) == ["net.flat"]


def replaced(model):
    """As accelerate does for mixed precision: a bound function on the instance."""
    plain = model.forward
    model.forward = lambda x: 1 * plain(x)
    return model


def test_a_forward_that_was_replaced_on_the_instance_knows_its_samples(batch):
    oracle = Net().double()
    model = replaced(copy.deepcopy(oracle))
    before = model.forward
    optimizer = fngd.FNGD(model, lr=0.1, alpha=0.05, derive_steps=1)
    nn.functional.mse_loss(model(batch["x"]), batch["y"]).backward()
    assert_natural(model, oracle, batch)
    assert copy.deepcopy(model).forward is before
    optimizer.detach()
    assert model.forward is before
