"""Number words, English to German, 0 to 999,999, a small but real translation problem made by rule; exercises on them.

German joins the whole number into one word and says the ones before the tens ('three hundred twenty-one' is
'dreihunderteinundzwanzig'), so a model has to learn reordering and compounding. Spelling follows American usage
(no 'and', tens hyphenated) and the long German forms (einhundert, eintausend), all lower case.

What an exercise is about decides its split, whatever the seed, so that no split holds anything of another one: not
the same sum the other way round, not the same numbers to sort in another order. Of what there is, 90 % are ``train``,
5 % ``validation`` and 5 % ``test``; single numbers below 100 are all ``train``, so that every word can be learnt.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt64

from flax_transformer.data.split import SPLITS
from flax_transformer.data.table import Table
from flax_transformer.data.text.pair import PairSource
from flax_transformer.data.text.tfds import (
    build_pairs,
)
from flax_transformer.frozen import frozen

LIMIT = 1_000_000


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ENGLISH = _words(
    "zero one two three four five six seven eight nine ten eleven twelve "
    "thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
)


_ENGLISH_TENS = _words("twenty thirty forty fifty sixty seventy eighty ninety")


_GERMAN = _words(
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf "
    "dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn"
)


_GERMAN_TENS = _words("zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")


def english(n: int) -> str:
    """Spell ``n`` in American English.

    >>> english(321), english(21_000)
    ('three hundred twenty-one', 'twenty-one thousand')
    """
    _check(n)
    if n < 20:
        return _ENGLISH[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return _ENGLISH_TENS[tens - 2] + (f"-{_ENGLISH[ones]}" if ones else "")
    unit, word = (1000, "thousand") if n >= 1000 else (100, "hundred")
    many, rest = divmod(n, unit)
    return f"{english(many)} {word}" + (f" {english(rest)}" if rest else "")


def german(n: int) -> str:
    """Spell ``n`` in German as one lower-case word.

    >>> german(321), german(101_001)
    ('dreihunderteinundzwanzig', 'einhunderteintausendeins')
    """
    _check(n)
    return _german(n) + ("s" if n % 100 == 1 else "")  # "ein" inside the word, "eins" where the number ends with it


def _german(n: int) -> str:
    if n < 20:
        return _GERMAN[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return (f"{_GERMAN[ones]}und" if ones else "") + _GERMAN_TENS[tens - 2]
    unit, word = (1000, "tausend") if n >= 1000 else (100, "hundert")
    many, rest = divmod(n, unit)
    return _german(many) + word + (_german(rest) if rest else "")


def numbers(count: int, *, seed: int = 0, split: str = "train") -> Table:
    """Draw ``count`` different numbers of one split as English to German pairs.

    Which split a number belongs to is fixed, whatever the seed: below 100 all are ``train``, so that every word of
    both languages can be learnt; above, 90 % are ``train``, 5 % ``validation``, 5 % ``test``. Numbers of two, three,
    … six digits come in equal shares as far as there are enough of them, in random order.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    pool = np.flatnonzero(_split_of(np.arange(LIMIT, dtype=np.uint64)) == SPLITS.index(split))
    if not 1 <= count <= len(pool):
        raise ValueError(f"count must be between 1 and the {len(pool)} numbers of {split!r}, got {count}")
    random = np.random.default_rng([seed, SPLITS.index(split)])
    chosen = random.permutation(_draw(pool, count, random)).tolist()
    return Table({"source": [english(n) for n in chosen], "target": [german(n) for n in chosen]})


def _draw(pool: Int[np.ndarray, " pool"], count: int, random: np.random.Generator) -> Int[np.ndarray, " count"]:
    by_size = np.split(pool, np.searchsorted(pool, [100, 1_000, 10_000, 100_000]))
    drawn, left = [], count
    for done, members in enumerate(by_size):  # smallest first: what they cannot fill goes to the larger ones
        share = min(len(members), left // (len(by_size) - done))
        drawn.append(random.choice(members, size=share, replace=False))
        left -= share
    return np.concatenate(drawn)


def _split_of(n: UInt64[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return the index of each number's split, by the finaliser of SplitMix64 (Steele et al. 2014)."""
    mixed = n + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    percent = (mixed ^ (mixed >> np.uint64(31))) % np.uint64(100)
    held_out = np.where(percent < 5, SPLITS.index("validation"), np.where(percent < 10, SPLITS.index("test"), 0))
    return np.where(n < 100, 0, held_out)


def _check(n: int) -> None:
    if not 0 <= n < LIMIT:
        raise ValueError(f"number words are spelt from 0 to {LIMIT - 1}, got {n}")


Key = tuple[int, ...]


Draw = Callable[[np.random.Generator], tuple[Key, str, str]]


_TRIES = 1_000
"""Draws without a new exercise after which there is none left."""


def exercises(task: str, count: int, *, seed: int = 0, split: str = "train") -> Table:
    """Draw ``count`` different exercises of one of ``TASKS``, without a prefix.

    >>> exercises("add", 1)[0]
    {'source': 'forty-one plus two hundred twenty-four', 'target': 'two hundred sixty-five'}

    Raises:
        ValueError: another task or split, or more exercises than there are.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    drawn = list(_distinct(TASKS[task], task, count, seed, split))
    return Table({"source": [source for source, _ in drawn], "target": [target for _, target in drawn]})


def counting_texts(count: int, *, seed: int = 0, split: str = "train") -> list[str]:
    """Draw ``count`` different texts of six numbers at equal distances: any gap can be filled from what is left.

    >>> counting_texts(1)
    ['seventy-three one hundred seven one hundred forty-one one hundred seventy-five two hundred nine ...']
    """
    return [text for text, _ in _distinct(_count, "count", count, seed, split)]


def sums(count: int, *, seed: int = 0, split: str = "train") -> list[str]:
    """Draw ``count`` different texts of three sentences, each a sum that begins with the result of the one before.

    Most of what is lost of such a text follows from the rest, and so does the order of its sentences.

    >>> sums(1)[0]
    'seventy-two and four is seventy-six. seventy-six and two is seventy-eight. seventy-eight and seven is eighty-five.'
    """
    return [text for text, _ in _distinct(_sums, "sums", count, seed, split)]


def _distinct(draw: Draw, name: str, count: int, seed: int, split: str) -> Iterator[tuple[str, str]]:
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    rng = np.random.default_rng([seed, SPLITS.index(split), *name.encode()])
    seen: set[Key] = set()
    tries = 0
    while len(seen) < count:
        key, source, target = draw(rng)
        tries += 1
        if key not in seen and _exercise_split(key) == split:
            seen.add(key)
            tries = 0
            yield source, target
        elif tries == _TRIES:
            raise ValueError(f"there are hardly more than {len(seen)} exercises of {name!r} in {split}, got {count}")


def _exercise_split(key: Key) -> str:
    if len(key) == 1 and key[0] < 100:
        return "train"
    part = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8]) % 20
    return {0: "validation", 1: "test"}.get(part, "train")


def _number(rng: np.random.Generator, digits: int) -> int:
    """Draw a number of at most that many digits, every number of digits alike."""
    size = int(rng.integers(1, digits + 1))
    return int(rng.integers(10 ** (size - 1) if size > 1 else 0, 10**size))


def _several(rng: np.random.Generator) -> list[int]:
    return rng.choice(100, int(rng.integers(3, 6)), replace=False).tolist()


def _number_words(numbers: list[int]) -> str:
    return " ".join(english(n) for n in numbers)


def _translate(rng: np.random.Generator) -> tuple[Key, str, str]:
    n = _number(rng, 6)
    return (n,), english(n), german(n)


def _spell(rng: np.random.Generator) -> tuple[Key, str, str]:
    n = _number(rng, 6)
    return (n,), str(n), english(n)


def _write(rng: np.random.Generator) -> tuple[Key, str, str]:
    n = _number(rng, 6)
    return (n,), english(n), str(n)


def _add(rng: np.random.Generator) -> tuple[Key, str, str]:
    a, b = _number(rng, 3), _number(rng, 3)
    return (min(a, b), max(a, b)), f"{english(a)} plus {english(b)}", english(a + b)


def _sort(rng: np.random.Generator) -> tuple[Key, str, str]:
    numbers = _several(rng)
    return tuple(sorted(numbers)), _number_words(numbers), _number_words(sorted(numbers))


def _reverse(rng: np.random.Generator) -> tuple[Key, str, str]:
    numbers = _several(rng)
    return min(tuple(numbers), tuple(numbers[::-1])), _number_words(numbers), _number_words(numbers[::-1])


def _count(rng: np.random.Generator) -> tuple[Key, str, str]:
    first, distance = int(rng.integers(200)), int(rng.integers(1, 41))
    return (first, distance), _number_words(list(range(first, first + 6 * distance, distance))), ""


def _sums(rng: np.random.Generator) -> tuple[Key, str, str]:
    key = (int(rng.integers(1, 73)), *rng.integers(1, 10, 3).tolist())
    totals = np.cumsum(key).tolist()
    sentences = [
        f"{english(before)} and {english(more)} is {english(after)}."
        for before, more, after in zip(totals[:-1], key[1:], totals[1:], strict=True)
    ]
    return key, " ".join(sentences), ""


TASKS: dict[str, Draw] = {
    "translate": _translate,
    "spell": _spell,
    "write": _write,
    "add": _add,
    "sort": _sort,
    "reverse": _reverse,
}
"""Tasks by name: number words to German ones, digits to words and back, sums, numbers by size, words backwards."""


@frozen
class Numbers:
    """Number words, English to German; the pairs of the three splits are disjoint."""

    train: int = 20_000
    validation: int = 1_000
    test: int = 1_000
    seed: int = 0

    def read(self, split: str) -> PairSource:
        """Draw the pairs of a split."""
        return numbers(getattr(self, split), seed=self.seed, split=split)


def build_number_words(
    data_dir: str | os.PathLike, *, train: int = 100_000, validation: int = 1_000, test: int = 1_000, seed: int = 0
) -> Path:
    """Write the TFDS data set ``number_words``: ``numbers`` of the three splits, features ``en`` and ``de``."""
    counts = {"train": train, "validation": validation, "test": test}
    splits = {split: numbers(count, seed=seed, split=split) for split, count in counts.items()}
    return build_pairs("number_words", splits, source="en", target="de", data_dir=data_dir)
