"""Which files are held out, where a folder does not say so: by a seed and their names, evenly over the classes."""

import hashlib
import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.table import Table
from flax_transformer.listing import listed

SPLITS = ("train", "validation", "test")
_WORDS = {
    "train": "train", "training": "train", "validation": "validation", "val": "validation", "valid": "validation",
    "dev": "validation", "test": "test", "testing": "test", "t10k": "test",
}  # fmt: skip


def split_of(name: str) -> str | None:
    """Return which split a folder or a file is of, by a word in its name; None if it has none or several.

    >>> split_of("Valid"), split_of("instances_train2017.json"), split_of("contrast")
    ('validation', 'train', None)
    """
    words = re.findall(r"t10k|[a-z]+", name.lower())
    found = {_WORDS[word] for word in words if word in _WORDS}
    return found.pop() if len(found) == 1 else None


def split_file(data: Any, split: str) -> str:
    """Return what some data call the file of a split, in their field of its name.

    Raises:
      ValueError: no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    return getattr(data, split)


def is_split_name(name: str) -> bool:
    """Whether a name is a split's and nothing else, but for a number such as a year."""
    return name.lower().rstrip("0123456789_- ") in _WORDS


def normal(name: str) -> str:
    """Write a name in composed characters, as not all file systems do."""
    return unicodedata.normalize("NFC", name)


def hold_out(
    names: Sequence[str],
    labels: Int[np.ndarray, " B"],
    parts: Sequence[str],
    *,
    share: float,
    seed: int,
    what: str = "images",
) -> dict[str, Int[np.ndarray, "_"]]:
    """Take a share of every class for each of some parts; the rest is `train`.

    Where one goes depends on the seed, its name and the names of the others of its class, not on their order.

    Args:
      names: of what is parted.
      labels: the numbers of their classes.
      parts: which are held out.
      share: of each part.
      seed: which ones they are.
      what: what messages call them.

    Raises:
      ValueError: a class with too few of them, or a share that leaves nothing to train on.
    """
    if not 0 < share * len(parts) < 1:
        raise ValueError(f"holdout must be in (0, {1 / len(parts):g}) for {len(parts)} parts, got {share}")
    places = _places(names, seed)
    found: dict[str, list] = {part: [] for part in ("train", *parts)}
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if len(members) <= len(parts):
            raise ValueError(
                f"a class must have at least {len(parts) + 1} {what} for {', '.join(found)}, that of "
                f"{names[members[0]]} has {len(members)}"
            )
        members = members[np.argsort(places[members], kind="stable")]
        count = max(1, round(share * len(members)))
        for number, part in enumerate(parts):
            found[part].append(members[number * count : (number + 1) * count])
        found["train"].append(members[len(parts) * count :])
    return {part: np.sort(np.concatenate(each)) for part, each in found.items()}


def complete_splits(
    splits: Mapping[str, Any],
    names: Callable[[Any], Sequence[str]],
    labels: Callable[[Any], Int[np.ndarray, " B"]],
    *,
    share: float,
    seed: int,
    where: str | os.PathLike,
    what: str = "images",
    take: Callable[[Any, Int[np.ndarray, "_"]], Any] = Table.take,
) -> dict[str, Any]:
    """Return all three splits in their order: those that there are not are held out of `train`, as `hold_out` does.

    Args:
      splits: tables.
      names: gives the names of a split's items.
      labels: gives the numbers of their classes.
      share: of each part.
      seed: which ones they are.
      where: folder that messages name.
      what: what they call the items.
      take: picks items by their numbers.

    Raises:
      ValueError: no split to train on, or what `hold_out` refuses.
    """
    if "train" not in splits:
        raise ValueError(f"{where} must have {what} of a split train, it has those of {listed(splits)}")
    missing = [split for split in SPLITS if split not in splits]
    if missing:
        train = splits["train"]
        try:
            parts = hold_out(names(train), labels(train), missing, share=share, seed=seed, what=what)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        splits = {**splits, **{split: take(train, indices) for split, indices in parts.items()}}
    return {split: splits[split] for split in SPLITS}


def stratified_subset(
    names: Sequence[str], labels: Int[np.ndarray, " B"], count: int, *, seed: int
) -> Int[np.ndarray, "_"]:
    """Choose some, of every class its share; fewer of them are some of those that more would be.

    Which ones depends on the same as in `hold_out`.

    Raises:
      ValueError: fewer than there are classes, or more than there are names.
    """
    classes, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if not len(classes) <= count <= len(names):
        raise ValueError(f"limit must be from {len(classes)}, one of each class, to {len(names)}, got {count}")
    order = np.lexsort((_places(names, seed), labels))
    members = labels[order]
    rank = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[members]
    return np.sort(order[np.argsort((rank + 0.5) / sizes[members], kind="stable")[:count]])


def _places(names: Sequence[str], seed: int) -> np.ndarray:
    """Return a number of 64 bits for each name."""
    return np.array(
        [int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8]) for name in names], np.uint64
    )
