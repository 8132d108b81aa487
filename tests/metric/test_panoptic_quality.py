"""Panoptic quality: what matches, what does not count, and means over classes."""

import numpy as np
import pytest

from flax_transformer.metric.panoptic_quality import class_quality, count_segments, panoptic_quality


def segments(numbers, classes, **more):
    """Make a map of segments with the ids 1, 2, … of these classes."""
    return {
        "numbers": np.array(numbers), "ids": np.arange(1, len(classes) + 1), "classes": np.array(classes),
        **{name: np.array(value) for name, value in more.items()},
    }  # fmt: skip


def counted(found, truth, classes=3):
    counts = count_segments(found, truth, classes)
    return [*map(list, (counts.overlap, counts.matched, counts.wrong, counts.missed))]


def test_what_is_right_has_quality_one():
    truth = segments([[1, 1, 2, 0], [3, 3, 2, 0]], [0, 1, 0])
    quality = panoptic_quality(count_segments(truth, truth, 3), (True, False, True))
    assert {name for name in quality} == {
        f"{q}{kind}" for q in ("pq", "sq", "rq") for kind in ("", "_things", "_stuff")
    }
    assert set(quality.values()) == {1.0}


def test_ids_say_nothing():
    truth = segments([[1, 1, 2, 2]], [0, 1])
    found = {"numbers": np.array([[90, 90, 7, 7]]), "ids": np.array([90, 7]), "classes": np.array([0, 1])}
    assert counted(found, truth) == [[1, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_one_half_is_no_match():
    truth = segments([[1, 1, 1, 1, 2, 2, 2, 2]], [0, 1])
    half = segments([[1, 1, 2, 2, 2, 2, 2, 2]], [0, 1])
    assert counted(half, truth) == [[0, 4 / 6, 0], [0, 1, 0], [1, 0, 0], [1, 0, 0]]


def test_another_class_is_no_match():
    truth = segments([[1, 1, 1]], [0])
    assert counted(segments([[1, 1, 1]], [2]), truth) == [[0, 0, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]


def test_pixels_of_no_segment_do_not_count():
    """Neither in a union, nor against what lies on them for the most part."""
    truth = segments([[1, 1, 0, 0, 0, 0]], [0])
    assert counted(segments([[1, 1, 1, 1, 1, 1]], [0]), truth) == [[1, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    aside = segments([[1, 1, 2, 2, 2, 2]], [0, 1])
    assert counted(aside, truth) == [[1, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    half = segments([[0, 1, 1, 0, 0, 0]], [1])
    assert counted(half, truth) == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0]]


def test_a_crowd_need_not_be_found_and_excuses_its_class():
    truth = segments([[1, 1, 1, 1, 2, 2]], [0, 1], crowd=[True, False])
    assert counted(segments([[1, 1, 1, 1, 0, 0]], [0]), truth) == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert counted(segments([[1, 1, 1, 1, 0, 0]], [1]), truth) == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0]]


def test_nothing_found_and_nothing_there():
    empty, truth = segments([[0, 0]], np.zeros(0, int)), segments([[1, 1]], [1])
    assert counted(empty, truth) == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert counted(truth, empty) == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert np.isnan(panoptic_quality(count_segments(empty, empty, 3))["pq"])


def test_images_add_up_and_pq_is_the_product():
    rng = np.random.default_rng(0)
    total, there = None, 0
    for _ in range(5):
        truth = segments(rng.integers(0, 4, (3, 4)).repeat(5, 0).repeat(5, 1), rng.integers(0, 3, 3))
        moved = np.roll(truth["numbers"], 1, axis=1)
        counts = count_segments({**truth, "numbers": moved}, truth, 3)
        total = counts if total is None else total + counts
        there += len({*np.unique(truth["numbers"])} - {0})
    each = class_quality(total)
    np.testing.assert_allclose(each["pq"], each["sq"] * each["rq"])
    assert 0.3 < panoptic_quality(total)["pq"] < 1
    assert total.matched.sum() + total.missed.sum() == there > 10


@pytest.mark.parametrize(
    ("found", "truth", "rule"),
    [
        (segments([[1, 1]], [0]), segments([[1]], [0]), r"one size, got \(1, 2\) and \(1, 1\)"),
        (segments([[1]], [3]), segments([[1]], [0]), "classes must be from 0 to 2, got \\[3\\]"),
        ({"numbers": np.ones((1, 1)), "ids": [1, 1], "classes": [0, 1]}, segments([[1]], [0]), "an id of their own"),
    ],
)
def test_what_is_no_map_of_segments_is_refused(found, truth, rule):
    with pytest.raises(ValueError, match=rule):
        count_segments(found, truth, 3)


def test_things_are_said_of_every_class():
    truth = segments([[1]], [0])
    with pytest.raises(ValueError, match="of each of 3 classes, got 2"):
        panoptic_quality(count_segments(truth, truth, 3), (True, False))
