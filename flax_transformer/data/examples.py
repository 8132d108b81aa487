"""Endless examples with random access: number i is a pure function of the data, the transforms, the seed and i.

An example is a mapping from field names to token arrays, numbers or texts. A transform is ``transform(example, rng)``,
a pure function of both, and so are Grain's: ``grain.MapDataset.random_map`` takes each of them as it is.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Integer, Shaped

from flax_transformer.data.identity import name_data, name_function

Arrays = dict[str, Shaped[np.ndarray, "..."] | dict[str, Any]]
"""A batch: arrays by name, those that a model takes by their names under `inputs`, in a tree where it has parts."""


Example = Mapping[str, Any]


Transform = Callable[[Any, np.random.Generator], Any]


Collate = Callable[[Sequence[Example | None]], Arrays]


POOL = 64
"""Batches whose examples are sorted by length together, where batches are of like lengths."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Example i for every i ≥ 0; made by ``shuffled`` or ``mixture``."""

    dataset: Any  # a grain.MapDataset without end
    identity: Mapping[str, Any]
    """All that the examples depend on, in values JSON can hold."""

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def shuffled(items: Sequence[Any], *transforms: Transform, seed: int) -> Examples:
    """Return all items in random order, epoch after epoch, through transforms with fresh draws each time.

    >>> examples = shuffled(range(3), seed=0)
    >>> sorted(examples[i] for i in range(3)), sorted(examples[i] for i in range(3, 6))
    ([0, 1, 2], [0, 1, 2])

    Raises:
        ValueError: no items, a seed outside [0, 2³²), or a transform that cannot be told from another.
    """
    identity = {"data": name_data(items), "transforms": [name_function(each) for each in transforms], "seed": seed}
    source = _source(items, seed).shuffle().repeat()
    return Examples(source.random_map(Chain(transforms)), identity)


def of_like_lengths(
    items: Sequence[Any],
    *transforms: Transform,
    seed: int,
    rows: int,
    lengths: Sequence[int] | Integer[np.ndarray, "_"],
) -> Examples:
    """Return all items as `shuffled` does, but so that each `rows` examples that follow each other are of like lengths.

    The examples of every `POOL` batches, or of an epoch that has fewer, are sorted by length and cut into batches,
    whose order is drawn.

    Args:
        rows: of a batch.
        lengths: of the items.

    >>> examples = of_like_lengths("abcd", seed=0, rows=2, lengths=(9, 1, 8, 2))
    >>> sorted(sorted(examples[i] for i in pair) for pair in ((0, 1), (2, 3)))
    [['a', 'c'], ['b', 'd']]

    Raises:
        ValueError: as `shuffled`; or lengths that are not those of the items.
    """
    if len(lengths) != len(items):
        raise ValueError(f"there must be a length for each of {len(items)} items, got {len(lengths)}")
    plain = shuffled(items, *transforms, seed=seed)
    numbers = _source(range(len(items)), seed).shuffle().repeat()
    pool = max(min(POOL, len(items) // rows), 1)
    identity = {**plain.identity, "like_lengths": {"rows": rows, "pool": pool}}
    return _LikeLengths(plain.dataset, identity, numbers, np.asarray(lengths), (pool, rows), seed)


@dataclass(frozen=True, eq=False)
class _LikeLengths(Examples):
    numbers: Any  # a grain.MapDataset of the items' numbers, in the order of `dataset`
    lengths: Integer[np.ndarray, "_"]
    shape: tuple[int, int]  # batches of a pool, and their rows
    seed: int
    pools: dict[int, np.ndarray] = field(default_factory=dict)

    def __getitem__(self, index: int) -> Any:
        size = math.prod(self.shape)
        pool, place = divmod(index, size)
        order = self.pools.get(pool)
        if order is None:
            numbers = [self.numbers[number] for number in range(pool * size, (pool + 1) * size)]
            batches = np.argsort(self.lengths[numbers], kind="stable").reshape(self.shape)
            order = np.random.default_rng([self.seed, pool]).permutation(batches).reshape(-1)
            for old in list(self.pools)[:-3]:  # threads read ahead, and on both sides of a border
                self.pools.pop(old, None)
            self.pools[pool] = order
        return self.dataset[pool * size + int(order[place])]


def each_once(
    items: Sequence[Any], *transforms: Transform, rows: int, collate: Collate, seed: int = 0
) -> Iterator[Arrays]:
    """Yield batches of every item once, in order and with the same draws every time; the last has empty rows.

    An empty row is all padding: its length is 0, and so are its weights.
    """
    dataset = _source(items, seed).random_map(Chain(transforms))
    for first in range(0, len(items), rows):
        last = min(first + rows, len(items))
        yield collate([*(dataset[index] for index in range(first, last)), *[None] * (first + rows - last)])


@dataclass(frozen=True)
class Chain:
    """One transform after the other, drawing from one generator."""

    transforms: tuple[Transform, ...]

    def __call__(self, example: Any, rng: np.random.Generator) -> Any:
        """Apply all.

        Raises:
            ValueError: what a transform refuses, with the example's `name` before it where it has one.
        """
        made = example
        try:
            for transform in self.transforms:
                made = transform(made, rng)
        except ValueError as error:
            if isinstance(example, Mapping) and "name" in example:
                raise ValueError(f"{example['name']}: {error}") from error
            raise
        return made


def _source(items: Sequence[Any], seed: int) -> Any:
    import grain

    if not len(items):
        raise ValueError("examples need at least one item, got 0")
    if not 0 <= seed < 1 << 32:
        raise ValueError(f"seed must be in 0..2**32 - 1, got {seed}")
    return grain.MapDataset.source(items).seed(seed)


def mixture(parts: Mapping[str, Examples], weights: Mapping[str, float | int]) -> Examples:
    """Interleave sources so that every stretch of examples holds them in proportion to their weights.

    Which source example i comes from, and which of its examples it is, depends on i and the weights alone.

    Raises:
        ValueError: names of parts and weights differ, or a weight is not positive.
    """
    import grain

    if parts.keys() != weights.keys() or not parts:
        raise ValueError(f"each part needs one weight, got parts {sorted(parts)}, weights {sorted(weights)}")
    if min(weights.values()) <= 0:
        raise ValueError(f"weights must be positive, got {dict(weights)}")
    names = sorted(parts)
    dataset = grain.MapDataset.mix([parts[name].dataset for name in names], [float(weights[name]) for name in names])
    identity = {name: {"weight": float(weights[name]), **parts[name].identity} for name in names}
    return Examples(dataset, identity)


def proportional(sizes: Mapping[str, int], *, temperature: float = 1.0, limit: int | None = None) -> dict[str, float]:
    """Weigh tasks by their numbers of examples, each at most ``limit``, to the power 1/temperature; the sum is 1.

    Temperature 1 is examples-proportional mixing, a high one nears equal mixing (Raffel et al. 2020, section 3.5.2,
    https://arxiv.org/abs/1910.10683).

    >>> proportional({"large": 900, "small": 100}, temperature=2.0)
    {'large': 0.75, 'small': 0.25}
    """
    if not sizes or min(sizes.values()) < 1:
        raise ValueError(f"every task must have examples, got {dict(sizes)}")
    if temperature <= 0 or (limit is not None and limit < 1):
        raise ValueError(f"temperature and limit must be positive, got {temperature}, {limit}")
    powers = {name: (size if limit is None else min(size, limit)) ** (1 / temperature) for name, size in sizes.items()}
    total = sum(powers.values())
    return {name: power / total for name, power in powers.items()}
