import numpy as np
import pytest

from flax_transformer.metric.average_precision import average_precision


def objects(boxes, labels=None, **more):
    labels = np.zeros(len(boxes), int) if labels is None else np.array(labels)
    return {"boxes": np.array(boxes, float).reshape(-1, 4), "labels": labels} | {
        k: np.array(v) for k, v in more.items()
    }


ONE, TWO, FAR = [0, 0, 10, 10], [20, 20, 40, 30], [500, 500, 510, 510]


def test_a_miss_between_two_hits_costs_what_it_does_by_hand():
    found = objects([ONE, FAR, TWO], scores=[0.9, 0.8, 0.7])
    # up to half of the recall nothing wrong was found, beyond that two of three were right: 51 and 50 of 101 levels
    assert average_precision([found], [objects([ONE, TWO])])["ap"] == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_how_much_a_box_covers_decides_at_how_many_overlaps_it_is_a_hit():
    found = objects([[0, 0, 10, 6.2]], scores=[1.0])  # covers 0.62 of it: enough for 0.5, 0.55 and 0.6
    scores = average_precision([found], [objects([ONE])])
    assert scores == pytest.approx({"ap": 0.3, "ap50": 1, "ap75": 0, "ap_small": 0.3})


def test_an_object_is_found_once():
    twice = objects([ONE, ONE, TWO], scores=[0.9, 0.8, 0.7])
    assert average_precision([twice], [objects([ONE, TWO])])["ap50"] == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_in_a_crowd_all_may_be_found_and_none_need_be():
    truth = objects([ONE, [0, 0, 100, 100]], crowd=[False, True])
    many = objects([ONE, [0, 50, 20, 80], [50, 50, 99, 99]], scores=[0.3, 0.9, 0.8])
    assert average_precision([many], [truth])["ap"] == pytest.approx(1)
    assert average_precision([objects([ONE], scores=[0.3])], [truth])["ap"] == pytest.approx(1)


def test_areas_are_scored_apart_and_only_where_there_are_objects():
    large = [0, 0, 200, 100]
    truth = objects([ONE, large])
    scores = average_precision([objects([large], scores=[0.5])], [truth])
    assert scores["ap_small"] == 0
    assert scores["ap_large"] == pytest.approx(1)
    assert "ap_medium" not in scores
    assert average_precision([objects([large], scores=[0.5])], [truth | {"areas": np.array([10, 2000])}])[
        "ap_medium"
    ] == pytest.approx(1)


def test_classes_count_alike_however_many_objects_they_have():
    truth = objects([ONE, TWO, FAR], labels=[4, 4, 7])
    found = objects([ONE, TWO, FAR], labels=[4, 4, 4], scores=[0.9, 0.8, 0.7])
    assert average_precision([found], [truth])["ap"] == pytest.approx(0.5)
    found["labels"][2] = 9
    assert average_precision([found], [truth])["ap"] == pytest.approx(0.5)


def test_the_order_of_pictures_and_of_what_was_found_does_not_matter():
    rng = np.random.default_rng(0)
    truth, found = [], []
    for _ in range(6):
        corner = rng.random((5, 2)) * 100
        boxes = np.concatenate([corner, corner + rng.random((5, 2)) * 60 + 5], 1)
        truth.append(objects(boxes, rng.integers(0, 3, 5)))
        near = boxes + rng.normal(size=boxes.shape) * 4
        found.append(objects(near, truth[-1]["labels"], scores=rng.random(5)))
    expected = average_precision(found, truth)
    turned = [{name: value[::-1] for name, value in each.items()} for each in found][::-1]
    assert average_precision(turned, truth[::-1]) == pytest.approx(expected)
    assert 0.1 < expected["ap"] < 0.9


def test_pictures_without_objects_count_by_what_is_found_in_them():
    empty = objects([])
    found = [objects([ONE], scores=[0.5]), objects([ONE], scores=[0.9])]
    assert average_precision(found, [objects([ONE]), empty])["ap"] == pytest.approx(0.5)
    assert average_precision([empty | {"scores": np.zeros(0)}], [objects([ONE])])["ap"] == 0
    assert average_precision(found, [empty, empty]) == {}
    assert average_precision([], []) == {}


def test_each_picture_must_have_been_looked_at():
    with pytest.raises(ValueError, match="what was found in each image, got 0 for 1 images"):
        average_precision([], [objects([ONE])])


@pytest.mark.parametrize("wrong", [{"scores": np.array([np.nan])}, {"boxes": np.array([[0.0, 0.0, np.inf, 9.0]])}])
def test_what_is_not_finite_is_refused(wrong):
    there = {"labels": np.array([3]), "boxes": np.array([[0.0, 0.0, 10.0, 10.0]])}
    found = {**there, "scores": np.array([0.5]), **wrong}
    with pytest.raises(ValueError, match=r"must be finite, got 1 of \d (scores|boxes) that are not"):
        average_precision([found], [there])
