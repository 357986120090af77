"""The real files, wherever `$FNGD_DATA` holds them, and in CI always."""

import os

import numpy as np
import pytest
import torch

from fngd_bench.data import load
from fngd_bench.data.fetch import verify
from fngd_bench.data.sets import find
from fngd_bench.data.tokens import UNK, train_vocabulary
from fngd_bench.errors import InputError

PUBLISHED = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
FILES = {
    "cifar10": ("cifar-10-batches-bin/data_batch_2.bin", "cifar-10-batches-bin/test_batch.bin", 1, 10_000),
    "cifar100": ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin", 2, 0),
}


@pytest.fixture(scope="module", params=PUBLISHED)
def cifar(request, real):
    return load(request.param, real(request.param))


def test_cifar_has_its_published_form(cifar):
    classes = 10 if cifar.name == "cifar10" else 100
    assert len(cifar.classes) == len(set(cifar.classes)) == classes
    for split, count in ((cifar.train, 50_000), (cifar.test, 10_000)):
        assert (split.images.dtype, split.images.shape) == (torch.uint8, (count, 3, 32, 32))
        assert split.labels.bincount().tolist() == [count // classes] * classes


def test_cifar_has_its_published_mean_and_deviation(cifar):
    mean, std = PUBLISHED[cifar.name]
    for channel in range(3):
        pixels = cifar.train.images[:, channel].numpy()
        average = pixels.mean(dtype=np.float64) / 255
        deviation = pixels.std(dtype=np.float64) / 255
        assert average == pytest.approx(cifar.mean[channel], rel=1e-12)
        assert deviation == pytest.approx(cifar.std[channel], rel=1e-12)
        assert round(average, 4) == mean[channel]
        assert round(deviation, 4) == std[channel]


def test_a_record_of_cifar_is_its_bytes(cifar, real):
    train, test, label_bytes, first = FILES[cifar.name]
    for path, split, offset in ((train, cifar.train, first), (test, cifar.test, 0)):
        content = (real(cifar.name) / path).read_bytes()
        for k in (0, 17, 9_999):
            record = content[k * (label_bytes + 3072) : (k + 1) * (label_bytes + 3072)]
            assert split.take(torch.tensor([offset + k])).numpy().tobytes() == record[label_bytes:]
            assert split.labels[offset + k] == record[label_bytes - 1]


def test_the_classes_of_cifar100_are_those_of_its_file(real):
    """Copies of the file differ in one thing: whether a maple is a maple_tree."""
    names = (real("cifar100") / "cifar-100-binary" / "fine_label_names.txt").read_text().split()
    short = [name.removesuffix("_tree") for name in find("cifar100").classes]
    assert short == [name.removesuffix("_tree") for name in names]


@pytest.mark.parametrize("name", PUBLISHED)
def test_one_flipped_bit_of_cifar_is_found(name, real, tmp_path):
    folder = real(name)
    train, spoilt, _, _ = FILES[name]
    (tmp_path / train).parent.mkdir()
    for path in (folder / train).parent.glob("*.bin"):
        (tmp_path / train).with_name(path.name).symlink_to(path)
    content = bytearray((folder / spoilt).read_bytes())
    content[12_345] ^= 1
    (tmp_path / spoilt).unlink()
    (tmp_path / spoilt).write_bytes(content)
    with pytest.raises(InputError, match=r"sha1 is [0-9a-f]{40}, not the published [0-9a-f]{40}"):
        load(name, tmp_path)


@pytest.fixture(scope="module")
def multi30k(real):
    return load("multi30k", real("multi30k"))


def test_multi30k_has_its_published_lines(multi30k):
    lengths = [len(split) for split in (multi30k.train, multi30k.validation, multi30k.test)]
    assert lengths == [29_000, 1_014, 1_000]
    assert multi30k.train.source[0] == "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."
    assert multi30k.train.target[0] == "Two young, White males are outside near many bushes."
    assert all(s and t for s, t in zip(multi30k.train.source, multi30k.train.target, strict=True))


def test_multi30k_comes_back_from_its_pieces(multi30k):
    vocabulary = train_vocabulary((*multi30k.train.source, *multi30k.train.target), 8000)
    assert len(vocabulary) == 8000
    for sentences in (multi30k.train.source[:2000], multi30k.test.source, multi30k.test.target):
        encoded = vocabulary.encode(sentences)
        assert vocabulary.decode(encoded) == list(sentences)
        assert not any(UNK in numbers for numbers in encoded)
    pieces = sum(map(len, vocabulary.encode(multi30k.test.target)))
    assert pieces < 1.2 * sum(len(sentence.split()) + 1 for sentence in multi30k.test.target)


def test_tiny20_has_500_and_50_images_of_each_class(real):
    data = load("tiny20", real("tiny20"))
    assert data.train.labels.bincount().tolist() == [500] * 20
    assert data.test.labels.bincount().tolist() == [50] * 20
    assert data.train.take(torch.arange(3)).shape == (3, 3, 64, 64)
    assert all(name.startswith("n") and name[1:].isdecimal() for name in data.classes)
    assert all(0.3 < number < 0.6 for number in data.mean)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "multi30k"])
def test_real_files_are_found_whole(name, real, quiet):
    said = []
    verify([name], real(name), quiet, said.append)
    assert said[0].endswith("files, sha1 as published")


def test_missing_files_skip_a_test_but_fail_it_in_ci(real, monkeypatch, tmp_path):
    for place in (None, str(tmp_path)):
        if place is None:
            monkeypatch.delenv("FNGD_DATA", raising=False)
        else:
            monkeypatch.setenv("FNGD_DATA", place)
        monkeypatch.delenv("CI", raising=False)
        with pytest.raises(pytest.skip.Exception, match="cifar10"):
            real("cifar10")
        monkeypatch.setenv("CI", "true")
        with pytest.raises(pytest.fail.Exception, match="cifar10"):
            real("cifar10")
    assert os.environ["CI"] == "true"
