"""Images in memory and in folders: form, counts, decoding, statistics, and the digits."""

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from fngd_bench.data import FolderImages, ImageData, MemoryImages, Sentences, load
from fngd_bench.data.dataset import Facts
from fngd_bench.data.fetch import fetch, verify
from fngd_bench.data.image_folders import Count, ImageFolders
from fngd_bench.data.pixels import BLOCK, Statistics, statistics
from fngd_bench.data.sets import SETS
from fngd_bench.errors import InputError

SMALL = ImageFolders(
    facts=Facts("small", "", "", "", ""),
    root="small",
    count=Count(classes=2, train=5, val=2),
    size=8,
    how="draw them",
    known=None,
)


def pixels(width, height, seed=0):
    """Smooth colours, which JPEG keeps within a few grey levels."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [np.sin((x + seed) / 9), np.cos(y / 7), np.sin((x + y) / 11)]
    return (127.5 + 120 * np.stack(channels, axis=2)).astype(np.uint8)


def write(path, width=8, height=8, seed=0, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(width, height, seed)).convert(mode).save(path, format="JPEG", quality=95)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for split, name, count in (("train", "b", 2), ("train", "a", 3), ("val", "a", 1), ("val", "b", 1)):
        for k in range(count):
            write(tmp_path / "small" / split / name / f"{name}_{k}.JPEG", seed=k)
    (tmp_path / "small" / "train" / "a" / "notes.txt").write_text("no image")
    monkeypatch.setitem(SETS, "small", SMALL)
    return tmp_path


def test_folders_are_classes_in_alphabetical_order(folder):
    data = load("small", folder)
    assert data.classes == ("a", "b")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1]
    assert data.test.labels.tolist() == [0, 1]
    assert isinstance(data.train, MemoryImages)
    with Image.open(folder / "small/train/a/a_1.JPEG") as image:
        expected = torch.tensor(np.asarray(image)).permute(2, 0, 1)
    assert torch.equal(data.train.take(torch.tensor([1]))[0], expected)
    assert (data.mean, data.std) == statistics(data.train.images)


def test_images_with_known_statistics_stay_in_their_files(folder, monkeypatch):
    from dataclasses import replace

    known = Statistics((0.5,) * 3, (0.25,) * 3)
    monkeypatch.setitem(SETS, "small", replace(SMALL, known=known))
    data, held = load("small", folder), SMALL.read(folder)
    assert isinstance(data.train, FolderImages)
    assert (data.mean, data.std) == known
    chosen = torch.tensor([4, 0, 0])
    assert torch.equal(data.train.take(chosen), held.train.take(chosen))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda root: (root / "train/a/a_0.JPEG").unlink(), "2 classes, 4 images in train and 2 in val; .* 5 images"),
        (lambda root: (root / "val/b/b_0.JPEG").rename(root / "val/b/b_0.png"), "1 in val"),
        (lambda root: (root / "val/c").mkdir(), "class c"),
        (lambda root: (root / "train/c").mkdir(), "class c"),
    ],
)
def test_a_folder_of_another_form_is_refused(folder, spoil, said):
    spoil(folder / "small")
    with pytest.raises(InputError, match=said):
        load("small", folder)


def test_empty_folders_are_refused(tmp_path):
    for split in ("train", "val"):
        (tmp_path / "small" / split).mkdir(parents=True)
    with pytest.raises(InputError, match="0 classes"):
        SMALL.read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no image", None])
def test_a_file_that_does_not_decode_is_named(folder, quiet, content):
    path = folder / "small" / "val" / "b" / "b_0.JPEG"
    path.write_bytes(path.read_bytes()[:-200] if content is None else content)
    for look in (lambda: load("small", folder), lambda: verify(["small"], folder, quiet, print)):
        with pytest.raises(InputError, match=r"val/b/b_0\.JPEG does not decode"):
            look()


def test_whole_folders_are_verified_and_need_no_fetch(folder, quiet):
    said = []
    verify(["small"], folder, quiet, said.append)
    assert said == ["small: 7 images decode; there is no published checksum"]
    assert "is there already" in fetch("small", folder, quiet)


@pytest.mark.parametrize(("width", "height"), [(16, 16), (40, 16), (16, 41), (8, 30), (200, 100), (5, 6)])
def test_an_image_is_brought_to_size_and_cut_at_the_centre(tmp_path, width, height):
    path = tmp_path / "image.JPEG"
    write(path, width, height)
    size = 16
    got = FolderImages([str(path)], torch.tensor([0]), size).take(torch.tensor([0]))
    assert (got.dtype, got.shape) == (torch.uint8, (1, 3, size, size))
    with Image.open(path) as image:
        shorter = min(image.size)
        wide, high = (size if side == shorter else int(side * size / shorter + 0.5) for side in image.size)
        whole = torch.tensor(np.asarray(image.resize((wide, high), Image.Resampling.BILINEAR)))
    top, left = (high - size) // 2, (wide - size) // 2
    expected = whole[top : top + size, left : left + size].permute(2, 0, 1)
    assert torch.equal(got[0], expected)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_every_image_becomes_red_green_and_blue(tmp_path, mode):
    path = tmp_path / "image.JPEG"
    write(path, mode=mode)
    assert FolderImages([str(path)], torch.tensor([0]), 8).take(torch.tensor([0, 0])).shape == (2, 3, 8, 8)


def test_statistics_are_exact_over_several_blocks():
    images = torch.randint(256, (2 * BLOCK + 7, 2, 3, 3), dtype=torch.uint8)
    images[:, 1] //= 2
    parts = images.double() / 255
    got = statistics(images)
    assert got.mean == pytest.approx(parts.mean(dim=(0, 2, 3)).tolist(), rel=1e-12)
    assert got.std == pytest.approx(parts.std(dim=(0, 2, 3), correction=0).tolist(), rel=1e-12)


def test_the_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    data = load("digits")
    assert (len(data.train), len(data.test)) == (1437, 360)
    images = torch.cat([data.train.images, data.test.images])
    labels = torch.cat([data.train.labels, data.test.labels])
    assert (images.dtype, images.shape[1:]) == (torch.uint8, (1, 8, 8))

    def sorted_rows(pixels, classes):
        return sorted((int(label), *row.tolist()) for row, label in zip(pixels, classes, strict=True))

    bunch = load_digits()
    assert sorted_rows(images.flatten(1), labels) == sorted_rows((15 * bunch.data).astype(int), bunch.target)
    assert data.mean[0] == pytest.approx(data.train.images.double().mean().item() / 255)


def test_the_digits_held_back_are_always_the_same():
    data = load("digits")
    digest = hashlib.sha1(data.test.images.numpy().tobytes()).hexdigest()
    assert digest == "80bcaf61d6417521bb6c4164bf696e6126268c79"
    torch.manual_seed(7)
    assert torch.equal(load("digits").test.images, data.test.images)


def zeros(*shape, dtype=torch.uint8):
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MemoryImages(zeros(2, 3, 4, 4), zeros(2)),
        lambda: MemoryImages(zeros(2, 3, 4, 4), zeros(2, 1, dtype=torch.int64)),
        lambda: MemoryImages(zeros(2, 3, 4, 4), zeros(3, dtype=torch.int64)),
        lambda: MemoryImages(zeros(2, 3, 4, 5), zeros(2, dtype=torch.int64)),
        lambda: MemoryImages(zeros(2, 4, 4), zeros(2, dtype=torch.int64)),
        lambda: MemoryImages(zeros(2, 3, 4, 4).float(), zeros(2, dtype=torch.int64)),
        lambda: FolderImages(["a"], zeros(2, dtype=torch.int64), 8),
        lambda: FolderImages(["a"], zeros(1, dtype=torch.int64), 0),
        lambda: Sentences(("a",), ()),
    ],
)
def test_data_of_another_form_are_refused(make):
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize(
    "change", [{"classes": ()}, {"classes": ("one",)}, {"std": (0.0,)}, {"mean": (0.5, 0.5)}], ids=str
)
def test_data_that_do_not_fit_together_are_refused(change):
    images = MemoryImages(zeros(2, 1, 4, 4), torch.tensor([0, 1]))
    right = {"classes": ("zero", "one"), "mean": (0.5,), "std": (0.5,)}
    ImageData(name="right", train=images, test=images, **right)
    with pytest.raises(InputError, match="wrong"):
        ImageData(name="wrong", train=images, test=images, **{**right, **change})
