"""Numbers in words, English to German: a translation task that is made on the spot and has one right answer.

Two things make it more than a dictionary. German says the units before the tens in one long word, "vierhundertsieben",
"einundzwanzig"; and one is "eins" at the very end but "ein" inside. English has a hyphen in "twenty-one", and "and"
before tens and units that follow something larger: "four hundred and seven", "one thousand and seven".
"""

from __future__ import annotations

import torch

from fngd_bench.data.types import Sentences, TextData
from fngd_bench.errors import InputError

LIMIT = 1_000_000
"""Numbers lie below it."""
TRAIN, VALIDATION, TEST = 4000, 500, 500
SPLIT_SEED = 0
"""Of the draw; no run's seed changes which numbers are held back."""

_ENGLISH_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_ENGLISH_TENS_WORDS = "- ten twenty thirty forty fifty sixty seventy eighty ninety"
_GERMAN_WORDS = (
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
)
_GERMAN_TENS_WORDS = "- zehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
_ENGLISH, _ENGLISH_TENS = _ENGLISH_WORDS.split(), _ENGLISH_TENS_WORDS.split()
_GERMAN, _GERMAN_TENS = _GERMAN_WORDS.split(), _GERMAN_TENS_WORDS.split()


def english(n: int) -> str:
    """A number in English words.

    Args:
        n: 0 … 999,999.

    Returns:
        For 21,407: "twenty-one thousand four hundred and seven".
    """
    _check(n)
    thousands, rest = divmod(n, 1000)
    if thousands == 0:
        return _english_below_1000(n)
    words = f"{_english_below_1000(thousands)} thousand"
    if rest == 0:
        return words
    return f"{words}{' and' if rest < 100 else ''} {_english_below_1000(rest)}"


def _english_below_1000(n: int) -> str:
    hundreds, rest = divmod(n, 100)
    if hundreds == 0:
        return _english_below_100(n)
    words = f"{_ENGLISH[hundreds]} hundred"
    return f"{words} and {_english_below_100(rest)}" if rest else words


def _english_below_100(n: int) -> str:
    if n < 20:
        return _ENGLISH[n]
    tens, units = divmod(n, 10)
    return f"{_ENGLISH_TENS[tens]}-{_ENGLISH[units]}" if units else _ENGLISH_TENS[tens]


def german(n: int) -> str:
    """A number as a German word.

    Args:
        n: 0 … 999,999.

    Returns:
        For 21,407: "einundzwanzigtausendvierhundertsieben".
    """
    _check(n)
    if n == 0:
        return _GERMAN[0]
    thousands, rest = divmod(n, 1000)
    word = f"{_german_below_1000(thousands)}tausend" if thousands else ""
    return word + _german_below_1000(rest) + ("s" if n % 100 == 1 else "")


def _german_below_1000(n: int) -> str:
    """Without the s of a final "eins"; nothing for zero."""
    hundreds, rest = divmod(n, 100)
    word = f"{_GERMAN[hundreds]}hundert" if hundreds else ""
    return word + _german_below_100(rest) if rest else word


def _german_below_100(n: int) -> str:
    if n < 20:
        return _GERMAN[n]
    tens, units = divmod(n, 10)
    return f"{_GERMAN[units]}und{_GERMAN_TENS[tens]}" if units else _GERMAN_TENS[tens]


def _check(n: int) -> None:
    if not 0 <= n < LIMIT:
        raise InputError(f"n={n} must lie in 0 … {LIMIT - 1:,}")


def numbers() -> TextData:
    """Pairs drawn without repetition: 4,000 to train on, 500 to validate, 500 to test."""
    drawn = torch.randperm(LIMIT, generator=torch.Generator().manual_seed(SPLIT_SEED)).tolist()
    return TextData(
        name="numbers",
        source_language="en",
        target_language="de",
        train=_pairs(drawn[:TRAIN]),
        validation=_pairs(drawn[TRAIN : TRAIN + VALIDATION]),
        test=_pairs(drawn[TRAIN + VALIDATION : TRAIN + VALIDATION + TEST]),
    )


def _pairs(drawn: list[int]) -> Sentences:
    return Sentences(tuple(map(english, drawn)), tuple(map(german, drawn)))
