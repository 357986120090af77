"""The natural gradient of drawn layers: what the table of cases may have missed."""

import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fngd
import reference
from reference import relative_error

small = st.integers(1, 4)


def check(model, x, dtype, tolerance, batch_dim=0):
    model, x = model.to(dtype), x.to(dtype)
    oracle = copy.deepcopy(model).double()
    scale = torch.linspace(0.5, 2.0, x.shape[batch_dim], dtype=torch.float64)

    def loss(output, scale):
        rows = output.movedim(batch_dim, 0).flatten(1)
        return (scale.to(rows.dtype) * (rows.square().sum(1) + rows.sum(1))).mean()

    fngd.FNGD(model, lr=0.1, alpha=0.02, derive_steps=1, batch_dim=batch_dim)
    loss(model(x), scale).backward()
    U = reference.alone(oracle, loss, [x.double()], scale, list(oracle.parameters()), batch_dim)
    gradient = reference.flat([p.grad for p in model.parameters()]).double()
    lam = reference.damping(U, 0.02)
    if lam == 0:  # the kernel met nothing but padding
        assert gradient.norm() == 0
        return
    assert relative_error(gradient / lam, reference.natural_gradient(U, lam)) <= tolerance


precisions = st.sampled_from([(torch.float64, 1e-10), (torch.float32, 1e-4)])


@settings(max_examples=60, deadline=None)
@given(st.data(), precisions)
def test_drawn_linear_layers(data, precision):
    torch.manual_seed(0)
    leading = data.draw(st.lists(small, min_size=1, max_size=3))
    batch_dim = data.draw(st.integers(0, len(leading) - 1))
    layer = nn.Linear(data.draw(small), data.draw(small), bias=data.draw(st.booleans()))
    check(layer, torch.randn(*leading, layer.in_features), *precision, batch_dim)


@settings(max_examples=80, deadline=None)
@given(st.data(), precisions)
def test_drawn_convolutions(data, precision):
    torch.manual_seed(0)
    dims, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))

    def draw(lowest, highest):
        return tuple(data.draw(st.integers(lowest, highest)) for _ in range(dims))

    kernel, dilation, extra = draw(1, 3), draw(1, 2), draw(0, 3)
    space = [d * (k - 1) + 1 + e for d, k, e in zip(dilation, kernel, extra, strict=True)]
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](
        groups * data.draw(st.integers(1, 2)),
        groups * data.draw(st.integers(1, 2)),
        kernel,
        stride=draw(1, 2),
        padding=draw(0, 2),
        dilation=dilation,
        groups=groups,
        bias=data.draw(st.booleans()),
    )
    check(layer, torch.randn(data.draw(small), layer.in_channels, *space), *precision)
