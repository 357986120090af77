"""With all coefficients 1, FNGD is torch.optim.SGD."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fngd
from reference import relative_error

ONES = 1e30
"""An α so large that K/(λM) vanishes beside the identity: every coefficient is 1."""


class Block(nn.Module):
    def __init__(self, channels, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels * stride, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels * stride),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels * stride, channels * stride, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels * stride),
        )
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(channels, channels * stride, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet():
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    blocks = [Block(8, 1), Block(8, 2), Block(16, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


SETTINGS = [
    {"momentum": 0.9, "weight_decay": 5e-4},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "dampening": 0.5, "weight_decay": 1e-3},
    {},
    {"maximize": True, "momentum": 0.5},
]


def train(optimizer, model, dtype, steps=20):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(8, 3, 8, 8, generator=generator, dtype=torch.float64).to(dtype)
        y = torch.randint(5, (8,), generator=generator)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def policies():
    return [fngd.Fresh(), fngd.Shared(1), fngd.Shared(5), fngd.Constant(3), fngd.Refreshed(4, 0.9)]


@pytest.mark.parametrize("policy", policies(), ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_twenty_steps_of_a_resnet_equal_sgd_in_float64(policy, settings):
    mine, theirs = resnet().double(), resnet().double()
    train(fngd.FNGD(mine, lr=0.05, alpha=ONES, policy=policy, **settings), mine, torch.float64)
    train(torch.optim.SGD(theirs.parameters(), lr=0.05, **settings), theirs, torch.float64)
    for name, value in theirs.state_dict().items():
        assert relative_error(mine.state_dict()[name].double(), value.double()) <= 1e-10


@pytest.fixture
def torchs_kernel(monkeypatch):
    """Let deriving steps sum with torch's kernel, and not as c·U with per-sample gradients that are at hand."""
    monkeypatch.setattr("fngd.layers.base.known_sums", lambda derived: {})


@pytest.mark.usefixtures("torchs_kernel")
@pytest.mark.parametrize("policy", policies(), ids=str)
def test_twenty_steps_of_a_resnet_equal_fused_sgd_bit_for_bit_in_float32(policy):
    mine, theirs = resnet(), resnet()
    settings = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    train(fngd.FNGD(mine, alpha=ONES, policy=policy, **settings), mine, torch.float32)
    train(torch.optim.SGD(theirs.parameters(), fused=True, **settings), theirs, torch.float32)
    for name, value in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[name], value), name


@pytest.mark.parametrize("policy", [fngd.Shared(1), fngd.Constant(1)], ids=str)
def test_biases_equal_sgd_bit_for_bit_when_sharing(policy):
    """While deriving, a bias of a layer with small inputs is summed by sample first, which torch's kernel does not."""
    mine, theirs = (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 5)) for _ in range(2))
    theirs.load_state_dict(mine.state_dict())
    optimizer = fngd.FNGD(mine, lr=0.0, alpha=ONES, policy=policy)
    train(optimizer, mine, torch.float32, steps=1)
    optimizer.param_groups[0]["lr"] = 0.05
    train(optimizer, mine, torch.float32)
    train(torch.optim.SGD(theirs.parameters(), lr=0.05, fused=True), theirs, torch.float32)
    for name, value in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[name], value), name


@pytest.mark.parametrize("policy", policies(), ids=str)
def test_twenty_steps_of_a_resnet_equal_fused_sgd_closely_when_per_sample_gradients_are_summed(policy):
    mine, theirs = resnet(), resnet()
    train(fngd.FNGD(mine, lr=0.01, alpha=ONES, policy=policy), mine, torch.float32)
    train(torch.optim.SGD(theirs.parameters(), lr=0.01, fused=True), theirs, torch.float32)
    for name, value in theirs.state_dict().items():
        assert relative_error(mine.state_dict()[name].double(), value.double()) <= 1e-4, name


@pytest.mark.usefixtures("torchs_kernel")
@pytest.mark.parametrize("policy", [fngd.Fresh(), fngd.Shared(2), fngd.Constant(2)], ids=str)
def test_channels_last_models_equal_sgd_bit_for_bit(policy):
    mine, theirs = (resnet().to(memory_format=torch.channels_last) for _ in range(2))
    train(fngd.FNGD(mine, lr=0.05, alpha=ONES, policy=policy), mine, torch.float32, steps=5)
    train(torch.optim.SGD(theirs.parameters(), lr=0.05, fused=True), theirs, torch.float32, steps=5)
    for name, value in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[name], value), name


def test_the_coefficients_are_really_one():
    model = resnet()
    optimizer = fngd.FNGD(model, lr=0.05, alpha=ONES, derive_steps=1)
    train(optimizer, model, torch.float32, steps=1)
    assert len(optimizer.coefficients) == 9
    assert all((c == 1).all() for c in optimizer.coefficients.values())


def test_the_update_is_the_fused_one_wherever_torch_has_it():
    model = resnet()
    assert fngd.FNGD(model, lr=0.1, derive_steps=1).param_groups[0]["fused"]
    sparse = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2))
    optimizer = fngd.FNGD(sparse, lr=0.1, derive_steps=1)
    before = copy.deepcopy(sparse[0].weight)
    sparse(torch.tensor([[1], [2]])).sum().backward()
    optimizer.step()
    assert not torch.equal(before, sparse[0].weight)
