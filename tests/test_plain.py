"""Numbers are plain on a CPU and tensors elsewhere; what is done with tensors is tried here, on a CPU too."""

import math

import pytest
import torch
from torch import nn

import fngd
from fngd import coefficients
from fngd.layers import derivation, head
from fngd.plain import all_of, at_least, chosen, over, plain, stacked
from reference import relative_error

SETTINGS = [
    {"policy": fngd.Fresh()},
    {"policy": fngd.Fresh(), "damping": 0.3},
    {"policy": fngd.Fresh(), "scale_by_damping": True},
    {"policy": fngd.Shared(2)},
    {"policy": fngd.FromHead()},
    {"policy": fngd.FromHead(rhs="residual")},
]


@pytest.fixture
def as_tensors(monkeypatch):
    """No number is read: as on a device where that is to wait."""

    def keep():
        for module in (coefficients, derivation, head):
            monkeypatch.setattr(module, "plain", lambda number: number)

    return keep


def trained(settings, poison=None):
    """Weights after four steps, and what the batches said; one batch may be spoilt."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    optimizer = fngd.FNGD(model, lr=0.1, momentum=0.9, **settings)
    for step in range(4):
        x = torch.randn(8, 6, dtype=torch.float64)
        loss = model(x).square().mean()
        (loss * math.nan if step == poison else loss).backward()
        if step == poison:
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), optimizer.statistics()


@pytest.mark.parametrize("settings", SETTINGS)
def test_tensors_say_what_plain_numbers_say(settings, as_tensors):
    weights, said = trained(settings)
    as_tensors()
    same, said_again = trained(settings)
    assert relative_error(same, weights) <= 1e-12
    for name, row in said.items():
        numbers = [torch.tensor([each.damping, each.cosine]) for each in (said_again[name], row)]
        assert relative_error(*numbers) <= 1e-10


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.filterwarnings("ignore:fngd")
def test_a_spoilt_batch_is_skipped_either_way(settings, as_tensors):
    weights, said = trained(settings, poison=1)
    as_tensors()
    same, said_again = trained(settings, poison=1)
    assert relative_error(same, weights) <= 1e-12
    assert weights.isfinite().all()
    assert [row.skipped for row in said.values()] == [row.skipped for row in said_again.values()]
    assert any(row.skipped for row in said.values())


def test_a_number_is_plain_on_a_cpu_alone():
    assert plain(torch.tensor(2.5)) == 2.5
    assert isinstance(plain(torch.empty((), device="meta")), torch.Tensor)


def test_plain_numbers_and_tensors_are_treated_alike():
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    for number in (0.5, torch.tensor(0.5)):
        assert float(at_least(1.0, number)) == 1.0
        assert float(over(3.0, number)) == 6.0
    assert over(3.0, 0.0) == float(over(3.0, torch.zeros(()))) == math.inf
    for yes, no in ((True, False), (torch.tensor(data=True), torch.tensor(data=False))):
        assert (chosen(yes, one, two), chosen(no, one, two), chosen(no, one, 5.0)) == (1.0, 2.0, 5.0)
        assert bool(all_of([yes, yes, True]))
        assert not bool(all_of([yes, no, True]))
    assert all_of([]) is True
    assert stacked([1.5, 1e-300]).tolist() == [1.5, 1e-300]
    assert stacked([True, False]).dtype == torch.bool
    assert stacked([torch.tensor(1.0, dtype=torch.float64), 2.0]).tolist() == [1.0, 2.0]
