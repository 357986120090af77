"""Sentences in, sentences out: smoothed cross-entropy over words, BLEU of greedy translations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fngd_bench.data.bleu import bleu
from fngd_bench.data.tokens import BOS, EOS, Vocabulary, pad
from fngd_bench.data.types import Sentences, TextData
from fngd_bench.models.transformer import PAD, Transformer
from fngd_bench.problems.base import Batch, Problem, Score

TEST_BATCH = 250
SMOOTHING = 0.1
"""Share of the target's weight that is spread over all words (Vaswani et al., 2017)."""


@dataclass(frozen=True, kw_only=True)
class TextView:
    """Which part of a data set is used."""

    train: int | None = None
    """Sentence pairs to train on, the first ones; all by default."""
    test: int | None = None
    longest: int = 100
    """Words of a sentence at most; what is longer is cut."""
    reverse: bool = False
    """Translate from the data set's target language to its source language."""


class Translation(Problem):
    """A translator of sentences."""

    metric = "BLEU"

    def __init__(
        self, model: Transformer, data: TextData, vocabulary: Vocabulary, view: TextView, *, batch: int, seed: int
    ) -> None:
        """Turn the sentences into words of the vocabulary.

        Args:
            model: Scores of the next target word.
            data: The data set.
            vocabulary: Of both languages.
            view: What is used of the data.
            batch: Sentence pairs of a batch.
            seed: Of the batches.
        """
        data = data.reversed() if view.reverse else data
        self.vocabulary = vocabulary
        self.longest = view.longest
        self.train_source, self.train_target = self._words(_first(data.train, view.train))
        self.test = _first(data.test, view.test)
        self.test_source, self.test_target = self._words(self.test)
        self.transformer = model
        super().__init__(model, len(self.train_source), batch, seed)

    def _words(self, sentences: Sentences) -> tuple[list[list[int]], list[list[int]]]:
        source = [words[: self.longest] for words in self.vocabulary.encode(sentences.source)]
        target = [[BOS, *words[: self.longest], EOS] for words in self.vocabulary.encode(sentences.target)]
        return source, target

    def prepare(self, chosen: Tensor, random: torch.Generator, part: slice) -> Batch:  # noqa: ARG002
        """Source words and target words so far; what is to be said next is the target moved on by one word."""
        source, target = ([texts[k] for k in chosen[part]] for texts in (self.train_source, self.train_target))
        usual = _mean_words([self.train_target[k] for k in chosen])
        return _batch(source, target)._replace(weight=_mean_words(target) / usual)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean smoothed cross-entropy over all words of the batch; a part with more words weighs more."""
        scores = model(*batch.inputs)
        loss = F.cross_entropy(
            scores.flatten(end_dim=-2), batch.targets.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
        )
        return loss if batch.weight == 1.0 else batch.weight * loss

    def evaluate(self) -> Score:
        """Mean cross-entropy over test words, and BLEU of the greedy translations."""
        loss, count = 0.0, 0
        translations: list[list[int]] = [[] for _ in self.test_source]
        by_length = sorted(range(len(self.test_source)), key=lambda k: len(self.test_source[k]))
        for first in range(0, len(by_length), TEST_BATCH):
            chosen = by_length[first : first + TEST_BATCH]
            batch = _batch([self.test_source[k] for k in chosen], [self.test_target[k] for k in chosen])
            source, target, following = map(self.here, (*batch.inputs, batch.targets))
            scores = self.transformer(source, target).flatten(end_dim=-2)
            loss += float(F.cross_entropy(scores, following.flatten(), ignore_index=PAD, reduction="sum"))
            count += int((following != PAD).sum())
            for k, words in zip(chosen, greedy(self.transformer, source, self.longest), strict=True):
                translations[k] = words
        return Score(loss / count, bleu(self.vocabulary.decode(translations), list(self.test.target)))


def greedy(model: Transformer, source: Tensor, longest: int) -> list[list[int]]:
    """The likeliest next word, again and again, until every sentence has ended.

    Args:
        model: The translator, in evaluation mode.
        source: Words, (M, S).
        longest: Words of a translation at most; it is also cut at twice the source's length and ten more.

    Returns:
        The words of each translation, without begin and end.
    """
    memory = model.encode(source)
    target = source.new_full((len(source), 1), BOS)
    ended = torch.zeros(len(source), dtype=torch.bool, device=source.device)
    for _ in range(min(longest, 2 * source.shape[1] + 10)):
        following = model.output(model.decode(memory, source, target)[:, -1]).argmax(-1)
        following = following.masked_fill(ended, PAD)
        target = torch.cat((target, following.unsqueeze(1)), 1)
        ended |= following == EOS
        if ended.all():
            break
    return [[word for word in words if word not in (PAD, EOS)] for words in target[:, 1:].tolist()]


def _batch(source: list[list[int]], target: list[list[int]]) -> Batch:
    words = pad(target)
    return Batch((pad(source), words[:, :-1].contiguous()), words[:, 1:].contiguous())


def _mean_words(target: list[list[int]]) -> float:
    """Words of a sentence that are to be said, on average."""
    return sum(len(words) - 1 for words in target) / len(target)


def _first(sentences: Sentences, count: int | None) -> Sentences:
    return Sentences(sentences.source[:count], sentences.target[:count])
