"""What KFAC and Eva measure equals sums over samples and columns, one at a time."""

import baseline_oracle as oracle
import pytest
import torch
from baseline_cases import METHODS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from reference import relative_error

STATISTICS = {"kfac": oracle.factors, "eva": oracle.vectors}
small = st.integers(1, 3)


class Twice(nn.Module):
    """One layer, two uses, of two sizes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        first = self.layer(x).tanh()
        return self.layer(first[:, :1])


CASES = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), (4,)),
    "linear on sequences": (lambda: nn.Linear(4, 3), (5, 4)),
    "linear with four dimensions": (lambda: nn.Linear(4, 3), (2, 3, 4)),
    "convolution": (lambda: nn.Conv2d(2, 3, 3), (2, 5, 6)),
    "strided, padded, dilated": (lambda: nn.Conv2d(2, 3, (2, 3), stride=(2, 1), padding=(1, 2), dilation=2), (2, 6, 5)),
    "same padding": (lambda: nn.Conv2d(2, 3, 3, padding="same", bias=False), (2, 4, 4)),
    "valid padding": (lambda: nn.Conv2d(2, 3, 2, padding="valid"), (2, 4, 4)),
    "reflected": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 4, 4)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 4)),
    "replicated": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate"), (2, 4, 4)),
    "used twice": (Twice, (3, 4)),
}


def loss(output, weight):
    rows = output.flatten(1)
    return (weight * (rows.square().sum(1) + rows.sin().sum(1))).mean()


def measured(method, model, x, y, **kwargs):
    """The statistics of one batch: the averages after the first step."""
    optimizer = METHODS[method](model, lr=0.0, **kwargs)
    loss(model(x), y).backward()
    optimizer.step()
    optimizer.detach()
    return optimizer.states


def check(method, model, x, tolerance=1e-10):
    module = next(m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d))
    y = torch.linspace(0.5, 2.0, len(x), dtype=torch.float64)
    expected = STATISTICS[method](oracle.uses(model, module, loss, x, y))
    (state,) = measured(method, model, x, y).values()
    for actual, wanted in zip((state.inputs, state.outputs), expected, strict=True):
        assert relative_error(actual, wanted) <= tolerance


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_statistics_equal_sums_over_single_columns(method, name):
    build, shape = CASES[name]
    check(method, build().double(), torch.randn(4, *shape, dtype=torch.float64))


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_statistics_of_drawn_convolutions(method, data):
    torch.manual_seed(0)

    def draw(highest):
        return tuple(data.draw(st.integers(1, highest)) for _ in range(2))

    kernel, dilation, extra = draw(3), draw(2), draw(3)
    space = [d * (k - 1) + e for d, k, e in zip(dilation, kernel, extra, strict=True)]
    padding = tuple(p - 1 for p in draw(3))
    layer = nn.Conv2d(
        data.draw(small), data.draw(small), kernel, draw(2), padding, dilation, bias=data.draw(st.booleans())
    )
    x = torch.randn(data.draw(small), layer.in_channels, *space, dtype=torch.float64)
    if data.draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
    check(method, layer.double(), x)


@pytest.mark.parametrize("method", METHODS)
def test_statistics_do_not_depend_on_the_size_of_the_blocks(method, monkeypatch):
    monkeypatch.setattr("fngd_bench.baselines.kfac._BLOCK", 1)
    check(method, nn.Conv2d(2, 3, 3, padding=1).double(), torch.randn(5, 2, 4, 4, dtype=torch.float64))


@pytest.mark.parametrize("method", METHODS)
def test_two_half_batches_add_up_to_the_whole_batch(method):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)).double()
    x, y = torch.randn(6, 2, 4, 4, dtype=torch.float64), torch.linspace(1, 2, 6, dtype=torch.float64)
    whole = measured(method, model, x, y)
    optimizer = METHODS[method](model, lr=0.0)
    for half in (slice(0, 3), slice(3, 6)):
        (loss(model(x[half]), y[half]) / 2).backward()
    optimizer.step()
    for name, state in optimizer.states.items():
        assert relative_error(state.inputs, whole[name].inputs) <= 1e-12
        assert relative_error(state.outputs, whole[name].outputs) <= 1e-12


def test_evas_output_vector_is_the_gradient_of_the_bias():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 3)).double()
    x, y = torch.randn(6, 2, 4, 4, dtype=torch.float64), torch.linspace(1, 2, 6, dtype=torch.float64)
    states = measured("eva", model, x, y)
    for name in ("0", "3"):
        assert relative_error(states[name].outputs, model.get_submodule(name).bias.grad) <= 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_running_averages_weight_the_old_value_by_decay_after_a_plain_start(method):
    model = nn.Linear(3, 2).double()
    batches = [torch.randn(4, 3, dtype=torch.float64) for _ in range(4)]
    y = torch.linspace(0.5, 2.0, 4, dtype=torch.float64)
    single = [measured(method, model, x, y)[""].inputs for x in batches]
    every = {"statistics_every": 1} if method == "kfac" else {}
    optimizer = METHODS[method](model, lr=0.0, decay=0.6, **every)
    for x in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    expected = (single[0] + single[1]) / 2  # min(1 − 1/k, 0.6) is 0, 1/2, 0.6, 0.6
    for new in single[2:]:
        expected = 0.6 * expected + 0.4 * new
    assert relative_error(optimizer.states[""].inputs, expected) <= 1e-12
