"""Whole batches at once give what a loop over samples gives."""

import pytest
import torch
import torch.nn.functional as F

from fngd_bench.data.augment import crop_and_flip, normalise


def images(M, channels, H, W):
    return torch.randint(256, (M, channels, H, W), dtype=torch.uint8)


def one_by_one(batch, padding, generator):
    """The same draws; then each sample alone, by slicing."""
    M, _, H, W = batch.shape
    down, right = (torch.randint(2 * padding + 1, (M, 1), generator=generator) for _ in range(2))
    mirrored = torch.randint(2, (M, 1), generator=generator, dtype=torch.bool)
    result = []
    for image, y, x, flip in zip(batch, down, right, mirrored, strict=True):
        window = F.pad(image, (padding,) * 4)[:, int(y) : int(y) + H, int(x) : int(x) + W]
        result.append(window.flip(2) if flip else window)
    return torch.stack(result)


@pytest.mark.parametrize(
    ("shape", "padding"), [((64, 3, 32, 32), 4), ((17, 1, 8, 8), 1), ((5, 2, 6, 9), 2), ((8, 3, 5, 5), 0)]
)
def test_crop_and_flip_is_a_slice_of_each_sample(shape, padding):
    batch = images(*shape)
    before = batch.clone()
    got = crop_and_flip(batch, padding, torch.Generator().manual_seed(3))
    assert torch.equal(got, one_by_one(batch, padding, torch.Generator().manual_seed(3)))
    assert torch.equal(batch, before)
    assert got.dtype == torch.uint8


def test_strided_images_give_the_same():
    batch = images(6, 3, 8, 8)
    strided = batch.contiguous(memory_format=torch.channels_last)
    one, other = (crop_and_flip(b, 2, torch.Generator().manual_seed(0)) for b in (batch, strided))
    assert torch.equal(one, other)


def test_the_generator_decides_all():
    batch = images(32, 3, 8, 8)
    same = [crop_and_flip(batch, 2, torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*same)
    generator = torch.Generator().manual_seed(5)
    first, second = (crop_and_flip(batch, 2, generator) for _ in range(2))
    assert torch.equal(first, same[0])
    assert not torch.equal(second, first)


def test_every_window_is_drawn_and_half_are_mirrored():
    side, padding = 3, 1
    grid = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, side, side).expand(4000, -1, -1, -1)
    results = crop_and_flip(grid, padding, torch.Generator().manual_seed(0)).flatten(1)
    kinds, counts = results.unique(dim=0, return_counts=True)
    assert len(kinds) == 2 * (2 * padding + 1) ** 2
    assert 4000 / len(kinds) * 0.6 < counts.min() <= counts.max() < 4000 / len(kinds) * 1.4  # more than 5 deviations


def test_normalised_pixels_are_the_formula_in_double_precision():
    batch = images(16, 3, 7, 7)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    m, s = (torch.tensor(numbers, dtype=torch.float64).view(3, 1, 1) for numbers in (mean, std))
    expected = (batch.double() / 255 - m) / s
    got = normalise(batch, mean, std)
    assert got.dtype == torch.float32
    assert got.is_contiguous()
    # The largest number is below 3, and three roundings of float32 are made on the way.
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=3 * 3 * 2**-24)


def test_normalising_wants_a_number_a_channel():
    with pytest.raises(ValueError, match="zip"):
        normalise(images(1, 3, 2, 2), (0.5,), (0.5, 0.5))
