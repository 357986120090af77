"""The weighted backward in blocks of samples: what it returns, what it holds, and when it is taken."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fngd.weighted
from fngd.nodes import Weighted
from fngd.operations import Convolution, Linear, Samples
from fngd.processor import convolves_channels_last
from fngd.saved import may_read_scaled
from fngd.scratch import Scratch
from fngd.uses import Use
from fngd.weighted import LARGE, in_blocks, is_turned, weighted_backward
from reference import relative_error

M = 7
USES = {
    "convolution": (Convolution(Samples(0, M), (1, 1), (1, 1), (1, 1)), (M, 2, 6, 6), (3, 2, 3, 3)),
    "convolution that shrinks": (Convolution(Samples(0, M), (2, 2), (1, 1), (1, 1)), (M, 4, 9, 9), (2, 4, 3, 3)),
    "two images a sample": (Convolution(Samples(0, M, 2), (1, 1), (0, 0), (1, 1)), (2 * M, 2, 6, 6), (3, 2, 3, 3)),
    "linear": (Linear(Samples(0, M)), (M, 9, 3), (4, 3)),
    "linear that widens": (Linear(Samples(0, M)), (M, 9, 3), (8, 3)),
    "linear, samples in turn": (Linear(Samples(0, M, 3, sample_major=False)), (3 * M, 9, 4), (4, 4)),
    "linear that shrinks": (Linear(Samples(0, M)), (M, 9, 4), (2, 4)),
}


def drawn(name, dtype=torch.float64):
    torch.manual_seed(0)
    operation, x, weight = USES[name]
    x, weight = torch.randn(x, dtype=dtype), torch.randn(weight, dtype=dtype)
    c = operation.samples.spread(torch.rand(M, dtype=dtype) + 0.5, x.dim())
    return Use(operation, x, torch.randn_like(operation.forward(x, weight, None)), weight), c


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", USES)
def test_blocks_of_samples_add_up(name, bias, monkeypatch):
    use, c = drawn(name)
    operation, x, z, weight = use
    gx, _, _ = operation.backward(z, x, weight, (True, False, False))
    _, gw, gb = operation.backward(c * z, x, weight, (False, True, True))
    limit = 4 * weight.nbytes
    monkeypatch.setattr(fngd.weighted, "KEPT_BYTES", limit)
    assert min(x.nbytes, z.nbytes) > limit
    scratch = Scratch()
    found = weighted_backward(use, c, (True, True, bias), scratch)
    assert relative_error(found[0], gx) <= 1e-14
    assert relative_error(found[1], gw) <= 1e-13
    assert (found[2] is None) != bias
    assert not bias or relative_error(found[2], gb) <= 1e-13
    assert 0 < sum(buffer.nbytes for buffer in scratch.memory.buffers.values()) <= limit


def test_blocks_are_for_large_inputs_on_a_cpu_with_small_weights():
    operation = Convolution(Samples(0, 4), (1, 1), (1, 1), (1, 1))
    small, large = torch.empty(4, 8, 2, 2), torch.empty(4, 8, 600, 600)
    weight, wide = torch.empty(8, 8, 3, 3), torch.empty(8, 8, 300, 300)
    assert in_blocks(operation, large, weight)
    assert not in_blocks(operation, small, weight)
    assert not in_blocks(operation, large.to("meta"), weight)
    assert not in_blocks(operation, large.half(), weight)
    assert not in_blocks(operation, large, wide)
    assert not in_blocks(Linear(Samples(1, 8)), large, weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert not in_blocks(operation, large, weight)
    assert may_read_scaled(operation, small, weight, torch.ones(4))
    assert not may_read_scaled(operation, large, weight, torch.ones(4))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_large_input_of_a_sharing_step_is_weighted_in_blocks(layout, monkeypatch):
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 3, padding=1, bias=False, dtype=torch.float64).to(memory_format=layout)
    plain, x = copy.deepcopy(model), torch.randn(M, 2, 6, 6, dtype=torch.float64).to(memory_format=layout)
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=1)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    monkeypatch.setattr(fngd.weighted, "KEPT_BYTES", 4 * model.weight.nbytes)
    output = model(x)
    assert type(output.grad_fn) is Weighted._backward_cls
    output.pow(3).sum().backward()
    c = optimizer.coefficients[""]
    assert c.std() > 1e-4
    (c @ plain(x).pow(3).sum((1, 2, 3))).backward()
    assert relative_error(model.weight.grad, plain.weight.grad) <= 1e-13
    assert model.weight.grad.stride() == plain.weight.grad.stride()


CHANNELS = st.integers(fngd.weighted.FEWEST, fngd.weighted.MOST)


@settings(max_examples=30, deadline=None)
@given(CHANNELS, CHANNELS, st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.booleans(), st.booleans())
def test_what_is_turned_to_channels_last_is_weighted_as_in_float64(d_in, d_out, kernel, stride, padding, bias, blocks):
    operation = Convolution(Samples(0, M), (stride, stride), (padding, padding), (1, 1))
    x, weight = torch.randn(M, d_in, 7, 6), torch.randn(d_out, d_in, kernel, kernel)
    z, c = torch.randn_like(operation.forward(x, weight, None)), torch.rand(M, 1, 1, 1) + 0.5
    kept = [t.clone() for t in (x, z, c)]
    gx, _, _ = operation.backward(z, x, weight, (True, False, False))
    _, gw, gb = operation.backward(*((c * z).double(), x.double(), weight.double()), (False, True, True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fngd.weighted, "LARGE", 0)
        if blocks:
            patch.setattr(fngd.weighted, "KEPT_BYTES", 4 * weight.nbytes)
        assert is_turned(operation, x, weight) == convolves_channels_last()
        found = weighted_backward(Use(operation, x, z, weight), c, (True, True, bias), Scratch())
    assert torch.equal(found[0], gx)
    assert relative_error(found[1].double(), gw) <= 1e-6
    assert found[1].is_contiguous()
    assert not bias or relative_error(found[2].double(), gb) <= 1e-6
    assert all(torch.equal(now, before) for now, before in zip((x, z, c), kept, strict=True))


def test_turned_are_large_inputs_of_few_channels_on_a_cpu():
    operation = Convolution(Samples(0, 4), (1, 1), (1, 1), (1, 1))
    groups = Convolution(Samples(0, 4), (1, 1), (1, 1), (1, 1), groups=2)
    x, weight = torch.empty(4, 16, 128, 128), torch.empty(16, 16, 3, 3)
    assert x.nbytes == LARGE
    assert is_turned(operation, x, weight) == convolves_channels_last()
    assert may_read_scaled(operation, x, weight, torch.ones(4)) != convolves_channels_last()
    refused = [
        (operation, x[:3], weight),
        (operation, x.to("meta"), weight),
        (operation, x.double(), weight),
        (operation, x.to(memory_format=torch.channels_last), weight),
        (operation, x, weight.to(memory_format=torch.channels_last)),
        (operation, x, torch.empty(25, 16, 3, 3)),
        (operation, x, torch.empty(7, 16, 3, 3)),
        (operation, x.view(4, 4, 256, 256), torch.empty(16, 4, 3, 3)),
        (groups, x, torch.empty(16, 8, 3, 3)),
        (Linear(Samples(0, 4)), x, torch.empty(16, 128)),
    ]
    assert not any(is_turned(*use) for use in refused)


def test_a_convolution_whose_input_is_turned_has_a_node_of_ours():
    torch.manual_seed(0)
    model = nn.Conv2d(16, 16, 3, padding=1, bias=False)
    plain, x = copy.deepcopy(model), torch.randn(16, 16, 64, 64)
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=1)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    output = model(x)
    assert (type(output.grad_fn) is Weighted._backward_cls) == convolves_channels_last()
    output.square().mean().backward()
    c = optimizer.coefficients[""]
    assert c.std() > 1e-4
    (c @ plain(x).square().mean((1, 2, 3)) / len(x)).backward()
    assert relative_error(model.weight.grad, plain.weight.grad) <= 1e-5
    assert model.weight.grad.stride() == plain.weight.grad.stride()
