import re

import numpy as np
import pytest

from flax_transformer.data.synthetic import english, german, numbers

# Checked against num2words 0.5.14 ("and" and commas removed), which agrees with our spelling on all of 0..19,999 and on
# 20,000 numbers above, except German thousands that end in 01, which it writes "…einstausend" against Duden.
SPELLING = {
    0: ("zero", "null"),
    1: ("one", "eins"),
    2: ("two", "zwei"),
    3: ("three", "drei"),
    4: ("four", "vier"),
    5: ("five", "fünf"),
    6: ("six", "sechs"),
    7: ("seven", "sieben"),
    8: ("eight", "acht"),
    9: ("nine", "neun"),
    10: ("ten", "zehn"),
    11: ("eleven", "elf"),
    12: ("twelve", "zwölf"),
    13: ("thirteen", "dreizehn"),
    14: ("fourteen", "vierzehn"),
    15: ("fifteen", "fünfzehn"),
    16: ("sixteen", "sechzehn"),
    17: ("seventeen", "siebzehn"),
    18: ("eighteen", "achtzehn"),
    19: ("nineteen", "neunzehn"),
    20: ("twenty", "zwanzig"),
    21: ("twenty-one", "einundzwanzig"),
    22: ("twenty-two", "zweiundzwanzig"),
    27: ("twenty-seven", "siebenundzwanzig"),
    30: ("thirty", "dreißig"),
    31: ("thirty-one", "einunddreißig"),
    36: ("thirty-six", "sechsunddreißig"),
    40: ("forty", "vierzig"),
    45: ("forty-five", "fünfundvierzig"),
    50: ("fifty", "fünfzig"),
    60: ("sixty", "sechzig"),
    66: ("sixty-six", "sechsundsechzig"),
    70: ("seventy", "siebzig"),
    77: ("seventy-seven", "siebenundsiebzig"),
    80: ("eighty", "achtzig"),
    90: ("ninety", "neunzig"),
    99: ("ninety-nine", "neunundneunzig"),
    100: ("one hundred", "einhundert"),
    101: ("one hundred one", "einhunderteins"),
    102: ("one hundred two", "einhundertzwei"),
    110: ("one hundred ten", "einhundertzehn"),
    111: ("one hundred eleven", "einhundertelf"),
    121: ("one hundred twenty-one", "einhunderteinundzwanzig"),
    200: ("two hundred", "zweihundert"),
    201: ("two hundred one", "zweihunderteins"),
    321: ("three hundred twenty-one", "dreihunderteinundzwanzig"),
    616: ("six hundred sixteen", "sechshundertsechzehn"),
    717: ("seven hundred seventeen", "siebenhundertsiebzehn"),
    999: ("nine hundred ninety-nine", "neunhundertneunundneunzig"),
    1000: ("one thousand", "eintausend"),
    1001: ("one thousand one", "eintausendeins"),
    1011: ("one thousand eleven", "eintausendelf"),
    1100: ("one thousand one hundred", "eintausendeinhundert"),
    2024: ("two thousand twenty-four", "zweitausendvierundzwanzig"),
    7777: ("seven thousand seven hundred seventy-seven", "siebentausendsiebenhundertsiebenundsiebzig"),
    11_000: ("eleven thousand", "elftausend"),
    21_000: ("twenty-one thousand", "einundzwanzigtausend"),
    21_021: ("twenty-one thousand twenty-one", "einundzwanzigtausendeinundzwanzig"),
    100_000: ("one hundred thousand", "einhunderttausend"),
    101_000: ("one hundred one thousand", "einhunderteintausend"),
    101_101: ("one hundred one thousand one hundred one", "einhunderteintausendeinhunderteins"),
    321_654: (
        "three hundred twenty-one thousand six hundred fifty-four",
        "dreihunderteinundzwanzigtausendsechshundertvierundfünfzig",
    ),
    999_999: (
        "nine hundred ninety-nine thousand nine hundred ninety-nine",
        "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
    ),
}
SOME = [*range(1200), *range(1200, 1_000_000, 1237), *(n * 1000 + k for n in (1, 21, 101, 999) for k in range(120))]


def read_english(words: str) -> int:
    value = group = 0
    for word in re.split("[ -]", words):
        if word == "thousand":
            value, group = group * 1000, 0
        elif word == "hundred":
            group *= 100
        else:
            group += next(n for n, (spelt, _) in SPELLING.items() if spelt == word)
    return value + group


def read_german(word: str) -> int:
    for unit, size in (("tausend", 1000), ("hundert", 100)):
        if unit in word:
            many, rest = word.split(unit, 1)
            return read_german(many) * size + (read_german(rest) if rest else 0)
    simple = {spelt: n for n, (_, spelt) in SPELLING.items() if n <= 20 or n in range(30, 100, 10)} | {"ein": 1}
    if word in simple:
        return simple[word]
    ones, tens = word.split("und", 1)
    return simple[ones] + simple[tens]


@pytest.mark.parametrize("n", SPELLING)
def test_spelling_agrees_with_the_verified_table(n):
    assert (english(n), german(n)) == SPELLING[n]


def test_reading_back_gives_the_number():
    assert [read_english(english(n)) for n in SOME] == SOME
    assert [read_german(german(n)) for n in SOME] == SOME


def test_spelling_is_injective():
    span = [*range(10_000), *range(10_000, 1_000_000, 53)]
    assert len({english(n) for n in span}) == len({german(n) for n in span}) == len(span)


@pytest.mark.parametrize("n", [-1, 1_000_000])
@pytest.mark.parametrize("spell", [english, german])
def test_numbers_out_of_range_are_refused(spell, n):
    with pytest.raises(ValueError, match=f"from 0 to 999999, got {n}"):
        spell(n)


def test_splits_are_disjoint_whatever_the_seed():
    drawn = {
        split: {source for seed in (0, 1) for source in numbers(1500, seed=seed, split=split)["source"]}
        for split in ("train", "validation", "test")
    }
    assert not drawn["train"] & drawn["validation"]
    assert not drawn["train"] & drawn["test"]
    assert not drawn["validation"] & drawn["test"]


def test_numbers_are_distinct_pure_in_the_seed_and_of_every_size():
    pairs = numbers(2000, seed=3)
    assert pairs.fingerprint == numbers(2000, seed=3).fingerprint
    assert pairs["source"] != numbers(2000, seed=4)["source"]
    assert len(set(pairs["source"])) == 2000
    values = np.array([read_english(source) for source in pairs["source"]])
    assert [read_german(target) for target in pairs["target"]] == values.tolist()
    digits = np.bincount([len(str(n)) for n in values], minlength=7)
    assert digits[1] + digits[2] == 100  # all below 100 are for training
    assert (digits[3:] >= 400).all()
    assert np.abs(np.diff(values.argsort())).mean() > 500  # in no order


def test_impossible_draws_name_both_numbers():
    with pytest.raises(ValueError, match=r"between 1 and the \d+ numbers of 'test', got 1000000"):
        numbers(1_000_000, split="test")
    with pytest.raises(ValueError, match="train, validation, test, got 'dev'"):
        numbers(1, split="dev")
