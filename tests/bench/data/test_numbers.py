"""Numbers in words, held against parsers that know nothing of how they were made."""

import pytest
import torch

from fngd_bench.data.numbers import LIMIT, english, german, numbers
from fngd_bench.errors import InputError

TABLE = [
    (0, "zero", "null"),
    (1, "one", "eins"),
    (6, "six", "sechs"),
    (7, "seven", "sieben"),
    (10, "ten", "zehn"),
    (11, "eleven", "elf"),
    (12, "twelve", "zwölf"),
    (13, "thirteen", "dreizehn"),
    (16, "sixteen", "sechzehn"),
    (17, "seventeen", "siebzehn"),
    (20, "twenty", "zwanzig"),
    (21, "twenty-one", "einundzwanzig"),
    (30, "thirty", "dreißig"),
    (40, "forty", "vierzig"),
    (66, "sixty-six", "sechsundsechzig"),
    (77, "seventy-seven", "siebenundsiebzig"),
    (99, "ninety-nine", "neunundneunzig"),
    (100, "one hundred", "einhundert"),
    (101, "one hundred and one", "einhunderteins"),
    (111, "one hundred and eleven", "einhundertelf"),
    (121, "one hundred and twenty-one", "einhunderteinundzwanzig"),
    (407, "four hundred and seven", "vierhundertsieben"),
    (1_000, "one thousand", "eintausend"),
    (1_001, "one thousand and one", "eintausendeins"),
    (1_100, "one thousand one hundred", "eintausendeinhundert"),
    (2_016, "two thousand and sixteen", "zweitausendsechzehn"),
    (10_007, "ten thousand and seven", "zehntausendsieben"),
    (21_000, "twenty-one thousand", "einundzwanzigtausend"),
    (101_000, "one hundred and one thousand", "einhunderteintausend"),
    (101_101, "one hundred and one thousand one hundred and one", "einhunderteintausendeinhunderteins"),
    (
        407_223,
        "four hundred and seven thousand two hundred and twenty-three",
        "vierhundertsiebentausendzweihundertdreiundzwanzig",
    ),
    (
        999_999,
        "nine hundred and ninety-nine thousand nine hundred and ninety-nine",
        "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
    ),
]
ENGLISH = {words: n for n, words, _ in TABLE if n in {0, 1, 6, 7, 10, 11, 12, 13, 16, 17, 20, 30, 40, 100, 1000}}
ENGLISH |= {"two": 2, "three": 3, "four": 4, "five": 5, "eight": 8, "nine": 9, "fourteen": 14, "fifteen": 15}
ENGLISH |= {"eighteen": 18, "nineteen": 19, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
GERMAN = {"ein": 1, "eins": 1, "zwei": 2, "drei": 3, "vier": 4, "fünf": 5, "sechs": 6, "sieben": 7, "acht": 8}
GERMAN |= {"neun": 9, "zehn": 10, "elf": 11, "zwölf": 12, "sechzehn": 16, "siebzehn": 17, "zwanzig": 20, "dreißig": 30}
GERMAN |= {f"{unit}zehn": 10 + n for unit, n in GERMAN.items() if n in {3, 4, 5, 8, 9}}
GERMAN |= {f"{stem}zig": 10 * n for stem, n in {"vier": 4, "fünf": 5, "sech": 6, "sieb": 7}.items()}
GERMAN |= {"achtzig": 80, "neunzig": 90}
DRAWN = torch.randint(LIMIT, (3000,), generator=torch.Generator().manual_seed(1)).tolist()


def parse_english(text):
    """Words from left to right: hundred multiplies what came last, thousand multiplies all so far."""
    thousands = rest = 0
    for word in text.replace("-", " ").split():
        if word == "and":
            continue
        if word == "hundred":
            rest *= 100
        elif word == "thousand":
            thousands, rest = rest * 1000, 0
        else:
            rest += ENGLISH[word]
    return thousands + rest


def parse_german(word):
    """The largest unit first: what stands before it multiplies it, what stands after it is added."""
    for unit, value in (("tausend", 1000), ("hundert", 100)):
        before, found, after = word.partition(unit)
        if found:
            return parse_german(before) * value + (parse_german(after) if after else 0)
    units, found, tens = word.partition("und")
    return GERMAN[units] + GERMAN[tens] if found else GERMAN[word]


@pytest.mark.parametrize(("n", "words", "word"), TABLE)
def test_numbers_are_said_as_people_say_them(n, words, word):
    assert (english(n), german(n)) == (words, word)


@pytest.mark.parametrize("candidates", [range(1, 10_000), DRAWN], ids=["below 10,000", "drawn"])
def test_words_say_their_number(candidates):
    for n in candidates:
        assert parse_english(english(n)) == n
        assert parse_german(german(n)) == n


def test_one_is_eins_at_the_end_and_ein_inside():
    for n in (*range(1, 10_000), *DRAWN):
        word = german(n)
        assert word.endswith("eins") == (n % 100 == 1)
        assert "eins" not in word.removesuffix("eins")


def test_and_stands_before_tens_and_units_only():
    for n in (*range(1, 10_000), *DRAWN):
        inside = [part for part in (n, n // 1000) if part > 100 and part % 100 != 0]
        assert english(n).split().count("and") == len(inside)


@pytest.mark.parametrize("n", [-1, LIMIT])
@pytest.mark.parametrize("say", [english, german])
def test_other_numbers_are_refused(say, n):
    with pytest.raises(InputError, match=f"n={n}"):
        say(n)


def test_the_splits_share_no_number_and_are_always_the_same():
    data = numbers()
    assert [len(split) for split in (data.train, data.validation, data.test)] == [4000, 500, 500]
    sources = [*data.train.source, *data.validation.source, *data.test.source]
    assert len(set(sources)) == 5000
    assert numbers() == data
    for split in (data.train, data.validation, data.test):
        assert all(parse_english(s) == parse_german(t) for s, t in zip(split.source, split.target, strict=True))
