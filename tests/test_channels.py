"""Images turned to channels last, by a kernel that torch has for something else."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fngd.channels import turned

SIDES = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4), st.integers(1, 40), SIDES, st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_turned_images_are_the_same_in_another_order(n, channels, sides, dtype):
    images = torch.randn(n, channels, *sides).to(dtype)
    found = turned(images)
    assert torch.equal(found, images)
    assert found.movedim(1, -1).is_contiguous()


def test_turned_images_are_a_copy():
    images = torch.ones(2, 3, 4, 5)
    turned(images).zero_()
    assert torch.equal(images, torch.ones(2, 3, 4, 5))


def test_what_is_turned_has_the_layout_that_torch_gives_it():
    images = torch.randn(2, 3, 4, 5)
    assert turned(images).stride() == images.contiguous(memory_format=torch.channels_last).stride()
