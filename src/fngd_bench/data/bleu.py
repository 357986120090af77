"""How good translations are: corpus BLEU by `sacrebleu`, and the share of them that is right to the letter."""

from __future__ import annotations

from collections.abc import Sequence

from fngd_bench.errors import InputError


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU with sacrebleu's own tokens (13a), one reference each, case kept.

    BLEU counts runs of one to four words. Lengths of run that no translation has are left out of the mean; otherwise
    texts of one-word sentences, such as German numbers, would score 0 even if all were right. On ordinary text this
    changes nothing. For one-word sentences `exact` is the better measure still: one translation of two words
    is enough to bring pairs of words into the mean.

    Args:
        hypotheses: Translations, plain text.
        references: What they should be.

    Returns:
        0 … 100.
    """
    from sacrebleu.metrics.bleu import BLEU

    _check(hypotheses, references)
    return float(BLEU(effective_order=True).corpus_score(list(hypotheses), [list(references)]).score)


def exact(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The share of translations that equal their reference.

    Args:
        hypotheses: Translations, plain text.
        references: What they should be.

    Returns:
        0 … 1.
    """
    _check(hypotheses, references)
    return sum(map(str.__eq__, hypotheses, references)) / len(references)


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references) or not references:
        raise InputError(f"{len(hypotheses)} translations and {len(references)} references; each needs one")
