"""Exercises on number words, made by rule: pairs of texts for text-to-text models, and texts without a pair.

What an exercise is about decides its split, whatever the seed, so that no split holds anything of another one: not
the same sum the other way round, not the same numbers to sort in another order. Of what there is, 90 % are ``train``,
5 % ``validation`` and 5 % ``test``; single numbers below 100 are all ``train``, so that every word can be learnt.
"""

import hashlib
from collections.abc import Callable, Iterator

import numpy as np

from flax_transformer.data.text.numbers import SPLITS, english, german
from flax_transformer.data.text.pair import TextPairs

Key = tuple[int, ...]
Draw = Callable[[np.random.Generator], tuple[Key, str, str]]

_TRIES = 1_000
"""Draws without a new exercise after which there is none left."""


def exercises(task: str, count: int, *, seed: int = 0, split: str = "train") -> TextPairs:
    """Draw ``count`` different exercises of one of ``TASKS``, without a prefix.

    >>> exercises("add", 1)[0]
    {'source': 'forty-one plus two hundred twenty-four', 'target': 'two hundred sixty-five'}

    Raises:
        ValueError: another task or split, or more exercises than there are.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    drawn = list(_distinct(TASKS[task], task, count, seed, split))
    return TextPairs([source for source, _ in drawn], [target for _, target in drawn])


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
        if key not in seen and _split_of(key) == split:
            seen.add(key)
            tries = 0
            yield source, target
        elif tries == _TRIES:
            raise ValueError(f"there are hardly more than {len(seen)} exercises of {name!r} in {split}, got {count}")


def _split_of(key: Key) -> str:
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


def _words(numbers: list[int]) -> str:
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
    return tuple(sorted(numbers)), _words(numbers), _words(sorted(numbers))


def _reverse(rng: np.random.Generator) -> tuple[Key, str, str]:
    numbers = _several(rng)
    return min(tuple(numbers), tuple(numbers[::-1])), _words(numbers), _words(numbers[::-1])


def _count(rng: np.random.Generator) -> tuple[Key, str, str]:
    first, distance = int(rng.integers(200)), int(rng.integers(1, 41))
    return (first, distance), _words(list(range(first, first + 6 * distance, distance))), ""


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
