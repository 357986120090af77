"""Images turned to channels last and back, by a kernel that torch has for something else, and what is made of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fngd.operations
from fngd.channels import turned, turned_back
from fngd.operations import Convolution, Samples
from fngd.processor import convolves_channels_last
from reference import relative_error

SIDES = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4), st.integers(1, 40), SIDES, st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_turned_images_are_the_same_in_another_order(n, channels, sides, dtype):
    images = torch.randn(n, channels, *sides).to(dtype)
    found = turned(images)
    assert torch.equal(found, images)
    assert found.movedim(1, -1).is_contiguous()
    back = turned_back(found)
    assert torch.equal(back, images)
    assert back.is_contiguous()


def test_turned_images_are_a_copy():
    images = torch.ones(2, 3, 4, 5)
    turned(images).zero_()
    assert torch.equal(images, torch.ones(2, 3, 4, 5))


def test_what_is_turned_has_the_layout_that_torch_gives_it():
    images = torch.randn(2, 3, 4, 5)
    assert turned(images).stride() == images.contiguous(memory_format=torch.channels_last).stride()


def strided(M, d_in, d_out, kernel, stride, padding, side=9):
    operation = Convolution(Samples(0, M), (stride, stride), (padding, padding), (1, 1))
    x, weight = torch.randn(M, d_in, side, side + 1), torch.randn(d_out, d_in, kernel, kernel)
    return operation, torch.randn_like(operation.forward(x, weight, None)), x, weight


@settings(max_examples=40, deadline=None)
@given(*[st.integers(2, 6), *2 * [st.integers(1, 40)], st.integers(1, 3), st.integers(2, 3), st.integers(0, 2)])
def test_the_input_gradient_of_a_strided_convolution_is_that_of_torch(M, d_in, d_out, kernel, stride, padding):
    operation, z, x, weight = strided(M, d_in, d_out, kernel, stride, padding)
    exact, _, _ = operation.backward(z.double(), x.double(), weight.double(), (True, False, False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fngd.operations, "TURNED", 0)
        assert operation._comes_back_turned(z, x) == convolves_channels_last()
        found = operation.backward(z, x, weight, (True, False, False))
    assert relative_error(found[0].double(), exact) <= 1e-6
    assert found[0].is_contiguous()
    assert found[1:] == (None, None)


@pytest.mark.parametrize("kernel", [1, 3])
def test_it_is_torchs_to_the_bit_since_the_kernel_is_the_same(kernel, monkeypatch):
    torch.manual_seed(0)
    operation, z, x, weight = strided(8, 16, 32, kernel, 2, kernel // 2, side=32)
    torchs, _, _ = operation.backward(z, x, weight, (True, True, False))
    monkeypatch.setattr(fngd.operations, "TURNED", 0)
    gx, _, _ = operation.backward(z, x, weight, (True, False, False))
    assert torch.equal(gx, torchs)


def test_only_large_images_of_a_usual_convolution_come_back_turned():
    operation, z, x, _ = strided(16, 16, 16, 3, 2, 1, side=64)
    assert operation._comes_back_turned(z, x) == convolves_channels_last()
    sides = ((1, 1), (1, 1), (1, 1))
    refused = [
        (operation, z[:2], x[:2]),
        (operation, z.double(), x.double()),
        (operation, z, x.to(memory_format=torch.channels_last)),
        (operation, z.to(memory_format=torch.channels_last), x),
        (Convolution(Samples(0, 16), *sides), z, x),
        (Convolution(Samples(0, 16), (2, 2), (1, 1), (1, 1), groups=2), z, x),
        (Convolution(Samples(0, 16), (2, 2), (1, 1), (2, 2)), z, x),
    ]
    assert not any(operation._comes_back_turned(z, x) for operation, z, x in refused)
