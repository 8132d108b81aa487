"""How well objects are found: average precision as COCO defines it (Lin et al. 2014, https://arxiv.org/abs/1405.0312).

Found objects, the surest first, each take the object of their class that they cover best, if that is free and their
overlap is large enough. Precision at 101 levels of recall is averaged over overlaps from 0.5 to 0.95 and over classes.
Axes: M found objects, G objects, A ranges of area, T overlaps, R levels of recall.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from flax_transformer.metric.finite import check_finite

OVERLAPS = np.linspace(0.5, 0.95, 10)


RECALLS = np.linspace(0, 1, 101)


AREAS = {"": (0, 1e10), "_small": (0, 32**2), "_medium": (32**2, 96**2), "_large": (96**2, 1e10)}
"""Ranges of pixels, by what is added to the metric's name."""


MOST = 100
"""Objects of a class in an image that count, the surest."""


Objects = Mapping[str, Any]


class _Matched(NamedTuple):
    """What became of the objects found in one image, and how many there were to find."""

    scores: Float[np.ndarray, "M"]
    hits: Bool[np.ndarray, "A T M"]
    ignored: Bool[np.ndarray, "A T M"]
    count: Int[np.ndarray, "A"]


def average_precision(found: Sequence[Objects], truth: Sequence[Objects]) -> dict[str, float]:
    """Score what was found in images against what is there.

    Args:
      found: of each image `scores`, `labels` and `boxes` in pixels: left, top, right, bottom.
      truth: of each image `labels` and `boxes`, perhaps `areas` where they are not those of the boxes, and `crowd`,
        true for boxes around many objects, in which any number may be found and none need be.

    Returns:
      `ap`, `ap50` and `ap75` at overlaps of 0.5 and 0.75, `ap_small`, `ap_medium` and `ap_large` of objects below 32²
      pixels, up to 96² and above: from 0 to 1, each where there is something to find.

    Raises:
      ValueError: not as many images found as there are; scores or boxes that are not finite.

    >>> there = {"labels": np.array([3]), "boxes": np.array([[0.0, 0.0, 10.0, 10.0]])}
    >>> found = average_precision([there | {"scores": np.array([0.9])}], [there])
    >>> {name: round(value, 6) for name, value in found.items()}
    {'ap': 1.0, 'ap50': 1.0, 'ap75': 1.0, 'ap_small': 1.0}
    """
    if len(found) != len(truth):
        raise ValueError(f"scoring needs what was found in each image, got {len(found)} for {len(truth)} images")
    for name in ("scores", "boxes"):
        check_finite(name, *(each[name] for each in found))
    truth = [_complete(each) for each in truth]
    classes = sorted({label for each in truth for label in each["labels"].tolist()})
    curves = [
        _curves([_match(_of(one, label, "scores"), _of(other, label)) for one, other in zip(found, truth, strict=True)])
        for label in classes
    ]
    precision = np.concatenate(
        [np.full((1, len(AREAS), len(OVERLAPS), len(RECALLS)), np.nan), *(c[None] for c in curves)]
    )
    parts = {f"ap{name}": precision[:, area] for area, name in enumerate(AREAS)}
    parts = {"ap": parts.pop("ap"), "ap50": precision[:, 0, 0], "ap75": precision[:, 0, 5], **parts}
    return {name: float(np.nanmean(part)) for name, part in parts.items() if not np.isnan(part).all()}


def _complete(truth: Objects) -> Objects:
    """Fill in areas, and that nothing is a crowd."""
    boxes = np.asarray(truth["boxes"], np.float64).reshape(-1, 4)
    known = {"areas": _area(boxes), "crowd": np.zeros(len(boxes), bool), **truth}
    return {name: np.asarray(value) for name, value in known.items()} | {"boxes": boxes}


def _of(objects: Objects, label: int, order: str | None = None) -> Objects:
    """Take the objects of one class; the surest, in that order, if they have scores."""
    at = np.flatnonzero(np.asarray(objects["labels"]) == label)
    if order is not None:
        at = at[np.argsort(-np.asarray(objects[order])[at], kind="stable")][:MOST]
    return {name: np.asarray(value)[at] for name, value in objects.items()}


def _match(found: Objects, truth: Objects) -> _Matched:
    """Match the objects found in an image, all of one class, with those that are there."""
    boxes = np.asarray(found["boxes"], np.float64).reshape(-1, 4)
    outside = [[(a < low) | (a > high) for a in (truth["areas"], _area(boxes))] for low, high in AREAS.values()]
    unasked = np.array([beyond | truth["crowd"] for beyond, _ in outside])[:, None]
    strange = np.array([beyond for _, beyond in outside])[:, None]
    shape = len(AREAS), len(OVERLAPS), len(boxes)
    hits, ignored = np.zeros(shape, bool), np.zeros(shape, bool)
    free = np.ones((*shape[:2], len(truth["areas"])), bool)
    enough = np.minimum(OVERLAPS, 1 - 1e-10)[:, None]
    for m, overlap in enumerate(_overlap(boxes, truth["boxes"], truth["crowd"]) if free.size else ()):
        fits = (free | truth["crowd"]) & (overlap >= enough)
        asked = fits & ~unasked
        fits = np.where(asked.any(-1, keepdims=True), asked, fits)
        best = fits.shape[-1] - 1 - np.argmax(np.where(fits, overlap, -1)[..., ::-1], axis=-1)[..., None]
        hits[..., m] = taken = fits.any(-1)
        ignored[..., m] = taken & np.take_along_axis(np.broadcast_to(unasked, fits.shape), best, -1)[..., 0]
        still = np.take_along_axis(free, best, -1) & ~taken[..., None]
        np.put_along_axis(free, best, still, -1)
    ignored |= ~hits & strange
    return _Matched(np.asarray(found["scores"]), hits, ignored, (~unasked[:, 0]).sum(-1))


def _curves(images: Sequence[_Matched]) -> Float[np.ndarray, "A T R"]:
    """Return the precision at each level of recall: the best that there is there or beyond; NaN without objects."""
    scores, hits, ignored = (np.concatenate(each, axis=-1) for each in list(zip(*images, strict=True))[:3])
    count = np.sum([each.count for each in images], axis=0)[:, None, None]
    order = np.argsort(-scores, kind="stable")
    right, wrong = (
        np.cumsum(each[..., order] & ~ignored[..., order], axis=-1, dtype=np.float64) for each in (hits, ~hits)
    )
    recall = right / np.maximum(count, 1)
    precision = right / (right + wrong + np.spacing(1))
    precision = np.maximum.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]
    precision = np.concatenate([precision, np.zeros((*precision.shape[:-1], 1))], axis=-1)
    curves = np.empty((*hits.shape[:2], len(RECALLS)))
    for place in np.ndindex(hits.shape[:2]):
        curves[place] = precision[place][np.searchsorted(recall[place], RECALLS, side="left")]
    return np.where(count > 0, curves, np.nan)


def _area(boxes: Float[np.ndarray, "M 4"]) -> Float[np.ndarray, "M"]:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _overlap(
    found: Float[np.ndarray, "M 4"], truth: Float[np.ndarray, "G 4"], crowd: Bool[np.ndarray, "G"]
) -> Float[np.ndarray, "M G"]:
    """Return the area that two boxes share, as a share of what they cover together; in a crowd, of what was found."""
    low = np.maximum(found[:, None, :2], truth[:, :2])
    high = np.minimum(found[:, None, 2:], truth[:, 2:])
    both = np.prod(np.maximum(high - low, 0), axis=-1)
    own = _area(found)[:, None]
    return both / np.maximum(np.where(crowd, own, own + _area(truth) - both), np.finfo(np.float64).tiny)
