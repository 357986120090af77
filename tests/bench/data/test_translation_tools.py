"""Byte-pair encoding and BLEU."""

import subprocess
import sys

import pytest
import torch

from fngd_bench.data.bleu import bleu, exact
from fngd_bench.data.numbers import numbers
from fngd_bench.data.tokens import BOS, EOS, SPECIAL, UNK, pad, train_vocabulary
from fngd_bench.errors import InputError
from fngd_bench.models.transformer import PAD

TEXT = numbers().train
SENTENCES = (*TEXT.source[:500], *TEXT.target[:500])


@pytest.fixture(scope="module")
def vocabulary():
    return train_vocabulary(SENTENCES, 150)


def test_special_words_have_the_first_numbers(vocabulary):
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert vocabulary.decode([[PAD, BOS, EOS, UNK]]) == [""]
    assert len(vocabulary) == 150
    encoded = vocabulary.encode(SENTENCES)
    assert {number for sentence in encoded for number in sentence} <= set(range(len(SPECIAL), 150))


@pytest.mark.parametrize("sentence", [*SENTENCES[:3], *SENTENCES[-3:], "two  hundred ", " seven", "", "eins zwei"])
def test_sentences_come_back_to_the_letter(vocabulary, sentence):
    assert vocabulary.decode(vocabulary.encode([sentence])) == [sentence]


def test_what_was_never_seen_is_unknown(vocabulary):
    assert UNK in vocabulary.encode(["seven @"])[0]


def test_names_of_special_words_are_ordinary_text():
    vocabulary = train_vocabulary(("a [PAD] b [EOS]", "[BOS] [UNK]"), 40)
    assert min(vocabulary.encode(["[PAD][EOS]"])[0]) >= len(SPECIAL)


def test_longer_pieces_make_shorter_sentences():
    few, many = (train_vocabulary(SENTENCES, size).encode(SENTENCES) for size in (60, 200))
    assert sum(map(len, many)) < 0.6 * sum(map(len, few))


def test_the_vocabulary_depends_on_the_sentences_alone(vocabulary):
    code = (
        "from fngd_bench.data.numbers import numbers\n"
        "from fngd_bench.data.tokens import train_vocabulary\n"
        "text = numbers().train\n"
        "sentences = (*text.source[:500], *text.target[:500])\n"
        "print(train_vocabulary(sentences[::-1], 150).encode(sentences[:50]))\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == f"{vocabulary.encode(SENTENCES[:50])}\n"


def test_a_vocabulary_without_room_for_bytes_is_refused():
    with pytest.raises(InputError, match="size=10"):
        train_vocabulary(SENTENCES, 10)


def test_padding_fills_up_to_the_longest():
    got = pad([[5, 6, 7], [8], [9, 4]])
    assert got.dtype == torch.int64
    assert got.tolist() == [[5, 6, 7], [8, PAD, PAD], [9, 4, PAD]]


def test_bleu_is_100_for_equal_texts_and_falls_with_errors():
    references = ["A man in an orange hat starring at something .", "Two men are at the stove preparing food ."]
    assert bleu(references, references) == pytest.approx(100)
    assert bleu(["nothing", "here"], references) < 1
    worse = [references[0].replace("orange", "green"), references[1]]
    assert 50 < bleu(worse, references) < 100


def test_bleu_is_the_formula():
    """Precisions of runs of 1 … 4 words counted by hand; lengths are equal."""
    hypothesis = "a man in a red hat looks at something"
    reference = "a man in an old hat looks at something"
    runs = [(7, 9), (5, 8), (3, 7), (1, 6)]
    expected = 100 * torch.tensor([a / b for a, b in runs], dtype=torch.float64).log().mean().exp()
    assert bleu([hypothesis], [reference]) == pytest.approx(float(expected))


def test_bleu_of_ordinary_text_is_sacrebleus_default():
    from sacrebleu.metrics.bleu import BLEU

    references = list(TEXT.source[:40])
    hypotheses = [" ".join(sentence.split()[:-1]) for sentence in references]
    assert bleu(hypotheses, references) == BLEU().corpus_score(hypotheses, [references]).score


def test_bleu_of_single_words_is_the_share_that_is_right():
    references = list(TEXT.target[:40])
    hypotheses = [*references[:30], *["null"] * 10]
    assert bleu(hypotheses, references) == pytest.approx(75)
    assert exact(hypotheses, references) == 0.75


@pytest.mark.parametrize("score", [bleu, exact])
def test_scores_want_a_reference_each(score):
    with pytest.raises(InputError, match="1 translations and 2 references"):
        score(["a"], ["a", "b"])
    with pytest.raises(InputError, match="0 references"):
        score([], [])
