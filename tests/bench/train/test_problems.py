"""What is trained: batches that depend on three numbers only, and tests that mean what they say."""

import pytest
import torch
from torch import nn

from fngd_bench import workloads
from fngd_bench.data.tokens import EOS
from fngd_bench.errors import InputError
from fngd_bench.problems.base import generator
from fngd_bench.problems.translation import greedy
from fngd_bench.workloads import WORKLOADS


def problem(name="digits-cnn", seed=0, batch=16):
    return workloads.build(WORKLOADS[name].scales["smoke"], batch=batch, seed=seed)


@pytest.mark.parametrize("name", ["digits-cnn", "cifar10-resnet32", "multi30k-transformer"])
def test_a_batch_depends_on_seed_epoch_and_step_alone(name):
    first, second = problem(name), problem(name)
    second.batch(0, 0)
    torch.rand(5)
    for a, b in zip(first.batch(1, 2).inputs, second.batch(1, 2).inputs, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(first.batch(1, 2).targets, second.batch(1, 2).targets)
    others = [problem(name, seed=1).batch(1, 2), first.batch(1, 1), first.batch(0, 2)]
    for other in others:
        same = other.inputs[0].shape == first.batch(1, 2).inputs[0].shape
        assert not same or not torch.equal(other.inputs[0], first.batch(1, 2).inputs[0])


@pytest.mark.parametrize("name", ["digits-cnn", "cifar10-resnet32", "multi30k-transformer"])
def test_the_parts_of_a_batch_are_its_samples_in_order(name):
    whole, parts = problem(name).batch(1, 2), [problem(name).batch(1, 2, slice(k, k + 4)) for k in range(0, 16, 4)]
    for number, part in enumerate(parts):
        for mine, all_of_them in zip((*part.inputs, part.targets), (*whole.inputs, whole.targets), strict=True):
            rows = all_of_them[4 * number : 4 * number + 4]
            if mine.dim() == 2:  # sentences are as long as the longest of the part
                rows = rows[:, : mine.shape[1]]
            assert torch.equal(mine, rows)


@pytest.mark.parametrize("name", ["digits-cnn", "multi30k-transformer"])
def test_the_losses_of_the_parts_average_to_that_of_the_batch(name):
    of = problem(name)
    of.model.eval().double()
    losses = []
    for part in (slice(None), slice(0, 8), slice(8, 16)):
        batch = of.batch(0, 1, part)
        inputs = tuple(t.double() if t.is_floating_point() else t for t in batch.inputs)
        losses.append(of.loss(of.model, batch._replace(inputs=inputs)).item())
    assert (losses[1] + losses[2]) / 2 == pytest.approx(losses[0], rel=1e-12)


def test_an_epoch_shows_every_sample_once():
    digits = problem(batch=32)
    digits.train.images.view(len(digits.train), -1)[:, 0] = torch.arange(len(digits.train)) % 251
    seen = torch.cat([digits.batch(3, step).targets for step in range(digits.steps_per_epoch)])
    assert digits.steps_per_epoch == 8
    assert torch.equal(seen.bincount(), digits.train.labels.bincount())


def test_weights_are_drawn_from_the_seed():
    weights = [next(problem(seed=seed).model.parameters()) for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_random_numbers_of_two_purposes_differ():
    drawn = {torch.randint(1 << 40, (1,), generator=generator(*purpose)).item() for purpose in PURPOSES}
    assert len(drawn) == len(PURPOSES)


PURPOSES = [(0, "batch", 1, 2), (0, "batch", 12), (0, "batch", 2, 1), (1, "batch", 1, 2), (0, "order", 1, 2)]


def test_accuracy_and_loss_are_those_of_the_test_images():
    digits = problem()

    class Oracle(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(()))
            self.calls = 0

        def forward(self, x):
            labels = digits.test.labels[self.calls : self.calls + len(x)]
            self.calls += len(x)
            scores = torch.zeros(len(x), 10)
            scores[torch.arange(len(x)), torch.where(torch.arange(len(x)) % 4 == 0, (labels + 1) % 10, labels)] = 1.0
            return scores

    digits.model = Oracle()
    score = digits.evaluate()
    assert score.metric == pytest.approx(0.75)
    right = -torch.log_softmax(torch.tensor([1.0] + [0.0] * 9), 0)
    assert score.loss == pytest.approx(float(0.75 * right[0] + 0.25 * right[1]), rel=1e-6)


def test_greedy_translation_stops_at_the_end_of_each_sentence():
    class Speller(nn.Module):
        """Says 5, 6, end to the first sentence, and 7, end to the second."""

        said = torch.tensor([[5, 6, EOS, 9], [7, EOS, 9, 9]])

        def encode(self, source):
            return source

        def decode(self, memory, source, target):
            return torch.nn.functional.one_hot(self.said[:, target.shape[1] - 1], 10).float().unsqueeze(1)

        def output(self, features):
            return features

    assert greedy(Speller(), torch.ones(2, 3, dtype=torch.int64), 10) == [[5, 6], [7]]


def test_a_perfect_translator_has_a_bleu_of_100(monkeypatch):
    text = problem("numbers-transformer")
    by_source = {tuple(s): t[1:-1] for s, t in zip(text.test_source, text.test_target, strict=True)}

    def perfect(model, source, longest):
        return [by_source[tuple(word for word in row if word)] for row in source.tolist()]

    monkeypatch.setattr("fngd_bench.problems.translation.greedy", perfect)
    with torch.no_grad():
        assert text.evaluate().metric == pytest.approx(100.0)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(InputError, match=r"batch=500 must be between 1 and the 256"):
        problem(batch=500)
