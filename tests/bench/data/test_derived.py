"""Data sets made of others: what is changed, and what is not."""

import pytest
import torch
from torch import nn

from fngd_bench.data import load
from fngd_bench.data.sets import SETS, find
from fngd_bench.problems.classification import Classification, View


def wrong(data, clean):
    return int((data.train.labels != clean.train.labels).sum())


@pytest.fixture(scope="module")
def cifar10(real):
    return load("cifar10", real("cifar10"))


def same_test(data, clean):
    return torch.equal(data.test.images, clean.test.images) and torch.equal(data.test.labels, clean.test.labels)


def test_forty_percent_of_the_labels_of_digits_are_drawn_anew():
    clean, data = load("digits"), load("digits-noisy")
    assert (data.name, data.classes, data.mean, data.std) == ("digits-noisy", clean.classes, clean.mean, clean.std)
    assert torch.equal(data.train.images, clean.train.images)
    assert same_test(data, clean)
    assert 0.3 < wrong(data, clean) / len(clean.train) < 0.4
    assert torch.equal(load("digits-noisy").train.labels, data.train.labels)


@pytest.mark.parametrize(("clean", "changed"), [("digits", "digits-noisy"), ("cifar10", "cifar10-noisy")])
@pytest.mark.parametrize("part", [0.1, 0.25, 0.5])
def test_any_part_that_a_view_shows_has_its_share_of_random_labels(clean, changed, part, real):
    folder = None if clean == "digits" else real(changed)
    clean, changed = load(clean, folder), load(changed, folder)
    view = View(train=round(part * len(clean.train)))
    shown, as_it_was = (Classification(nn.Identity(), data, view, batch=8, seed=0).train for data in (changed, clean))
    assert torch.equal(shown.images, as_it_was.images)
    share = float((shown.labels != as_it_was.labels).float().mean())
    assert abs(share - 0.36) < 4 * (0.36 * 0.64 / len(shown)) ** 0.5


def test_the_long_tail_of_digits_falls_to_a_hundredth():
    clean, data = load("digits"), load("digits-longtail")
    sizes, full = data.train.labels.bincount(minlength=10).tolist(), clean.train.labels.bincount().tolist()
    assert sizes == [round(n * 0.01 ** (k / 9)) for k, n in enumerate(full)]
    assert SETS["digits-longtail"].facts.samples == f"{len(data.train)} + {len(data.test)}"
    assert same_test(data, clean)
    kept = data.train.images.flatten(1)
    first = clean.train.images[clean.train.labels == 3][: sizes[3]].flatten(1)
    assert torch.equal(kept[data.train.labels == 3], first)


def test_noisy_cifar10_is_what_its_page_says(cifar10, real):
    data = load("cifar10-noisy", real("cifar10-noisy"))
    assert torch.equal(data.train.images, cifar10.train.images)
    assert same_test(data, cifar10)
    drawn = wrong(data, cifar10)
    assert drawn == 17_986  # 20,000 draws, a tenth of them right by chance
    spread = data.train.labels[data.train.labels != cifar10.train.labels].bincount()
    assert spread.min() > 0.9 * drawn / 10
    assert data.test.labels.bincount().tolist() == [1_000] * 10


def test_long_tailed_cifar10_is_what_its_page_says(cifar10, real):
    data = load("cifar10-longtail", real("cifar10-longtail"))
    sizes = data.train.labels.bincount().tolist()
    assert sizes == [5000, 2997, 1797, 1077, 646, 387, 232, 139, 83, 50]
    assert len(data.train) == 12_408
    assert same_test(data, cifar10)
    assert data.mean != cifar10.mean
    first = (cifar10.train.labels == 9).nonzero().squeeze(1)[:50]
    assert torch.equal(data.train.images[data.train.labels == 9], cifar10.train.images[first])


def test_files_are_those_of_the_other_data_set(tmp_path):
    for name in ("cifar10-noisy", "cifar10-longtail"):
        assert find(name).origin == "cifar10"
        assert find(name).absent(tmp_path) == find("cifar10").absent(tmp_path)
