"""How well an image is parted into segments: panoptic quality (Kirillov et al. 2018, https://arxiv.org/abs/1801.00868).

A found segment and a true one of its class match where their intersection over union is above one half. As in COCO's
`panopticapi`, pixels without a true segment do not count in unions, and a found segment most of which lies on such
pixels, or on a crowd of its class, is no mistake; a crowd need not be found.

Axes: H W height and width in pixels, M segments, E classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

Segments = Mapping[str, Any]
"""Which segment each pixel of an image is of: `numbers` [H, W], ids of segments, where any other number is of none;
`ids` [M] and `classes` [M] of the segments, of which those without a pixel do not count; and perhaps `crowd` [M], true
for groups whose members are not told apart."""


@dataclass(frozen=True, eq=False)
class SegmentCounts:
    """What is counted of each class; those of images add up."""

    overlap: Float[np.ndarray, " E"]
    """The intersections over unions of matched segments, summed."""
    matched: Int[np.ndarray, " E"]
    wrong: Int[np.ndarray, " E"]
    """Segments that were found and are not there."""
    missed: Int[np.ndarray, " E"]
    """Segments that are there and were not found."""

    def __add__(self, other: "SegmentCounts") -> "SegmentCounts":
        return SegmentCounts(
            self.overlap + other.overlap, self.matched + other.matched, self.wrong + other.wrong,
            self.missed + other.missed,
        )  # fmt: skip


def count_segments(found: Segments, truth: Segments, classes: int) -> SegmentCounts:
    """Match the segments found in an image with those that are there, and count.

    Raises:
      ValueError: maps of two sizes, ids that are not one for each segment, or a class that there is not.

    >>> found = {"numbers": np.array([[1, 1, 2]]), "ids": np.array([1, 2]), "classes": np.array([0, 0])}
    >>> count_segments(found, {**found, "classes": np.array([0, 1])}, 2)
    SegmentCounts(overlap=array([1., 0.]), matched=array([1, 0]), wrong=array([1, 0]), missed=array([0, 1]))
    """
    (at, ids, labels), (there, true_ids, true_labels) = (_read(each, classes) for each in (found, truth))
    if at.shape != there.shape:
        raise ValueError(f"maps of an image must have one size, got {at.shape} and {there.shape}")
    shared = _shared(_places(at, ids), _places(there, true_ids), len(ids), len(true_ids))
    crowd = np.asarray(truth.get("crowd", np.zeros(len(true_ids))), bool)
    alike = labels[:, None] == true_labels
    sizes, unseen, both = shared.sum(1)[:-1], shared[:-1, -1], shared[:-1, :-1]
    union = sizes[:, None] + shared.sum(0)[:-1] - both - unseen[:, None]
    iou = np.where(alike & ~crowd, both / np.maximum(union, 1), 0)
    hits = iou > 0.5  # of each segment there is one at most
    missed = ~hits.any(0) & ~crowd & (shared.sum(0)[:-1] > 0)
    aside = unseen + np.where(alike & crowd, both, 0).sum(1)
    wrong = ~hits.any(1) & (2 * aside <= sizes) & (sizes > 0)

    def count(labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(labels, weights, minlength=classes)

    of = np.nonzero(hits)[1]
    return SegmentCounts(
        count(true_labels[of], iou[hits]), count(true_labels[of]), count(labels[wrong]), count(true_labels[missed])
    )  # fmt: skip


def panoptic_quality(counts: SegmentCounts, things: Sequence[bool] = ()) -> dict[str, float]:
    """Return `pq`, `sq` and `rq`: quality, that of segmentation and that of recognition, means over classes.

    PQ is the product of SQ, the mean intersection over union of matched segments, and RQ, their F1 score. Classes that
    are nowhere, neither there nor found, are left out.

    Args:
      things: of each class, whether its objects are counted one by one; then there are also `pq_things`, `pq_stuff` and
        so on, where there are such classes.

    Raises:
      ValueError: not as many things as classes.

    >>> ones = np.ones(2, int)
    >>> panoptic_quality(SegmentCounts(0.9 * ones, ones, ones, np.array([1, 3])))["pq"]
    0.375
    """
    if things and len(things) != len(counts.matched):
        raise ValueError(f"things must say of each of {len(counts.matched)} classes, got {len(things)}")
    each, found = class_quality(counts), {}
    groups = {"": np.ones(len(counts.matched), bool)}
    if things:
        groups |= {"_things": np.array(things, bool), "_stuff": ~np.array(things, bool)}
    for ending, which in groups.items():
        which = which & ~np.isnan(each["pq"])
        for name, values in each.items():
            if which.any() or not ending:
                found[f"{name}{ending}"] = float(values[which].mean()) if which.any() else float("nan")
    return found


def class_quality(counts: SegmentCounts) -> dict[str, Float[np.ndarray, " E"]]:
    """Return the three of each class; NaN of one that is nowhere."""
    whole = counts.matched + 0.5 * counts.wrong + 0.5 * counts.missed
    there = np.where(whole > 0, whole, np.nan)
    sq = np.where(whole > 0, counts.overlap / np.maximum(counts.matched, 1), np.nan)
    return {"pq": counts.overlap / there, "sq": sq, "rq": counts.matched / there}


def _read(segments: Segments, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return numbers, ids and classes."""
    numbers, ids, labels = (np.asarray(segments[name], np.int64) for name in ("numbers", "ids", "classes"))
    if len(np.unique(ids)) != len(ids) or len(ids) != len(labels):
        raise ValueError(
            f"segments must have an id of their own and a class each, got {ids.tolist()}, {labels.tolist()}"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(f"classes must be from 0 to {classes - 1}, got {labels.tolist()}")
    return numbers, ids, labels


def _places(numbers: Int[np.ndarray, "H W"], ids: Int[np.ndarray, " M"]) -> Int[np.ndarray, "H W"]:
    """Return of each pixel where its segment is in the list, or the length of the list."""
    order = np.argsort(ids)
    at = np.searchsorted(ids[order], numbers)
    known = (at < len(ids)) & (np.append(ids[order], 0)[at] == numbers)
    return np.where(known, np.append(order, 0)[at], len(ids))


def _shared(
    found: Int[np.ndarray, "H W"], truth: Int[np.ndarray, "H W"], rows: int, columns: int
) -> Int[np.ndarray, "_ _"]:
    """Count the pixels that each found segment, or none, shares with each true one, or none."""
    pairs = np.bincount((found * (columns + 1) + truth).ravel(), minlength=(rows + 1) * (columns + 1))
    return pairs.reshape(rows + 1, columns + 1)
