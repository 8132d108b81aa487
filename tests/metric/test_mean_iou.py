"""The mean intersection over union: by hand, and against scikit-learn's Jaccard index."""

import numpy as np
import pytest

from flax_transformer.metric.mean_iou import class_iou, confusion, mean_iou


def maps(classes, seed=0, missing=()):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, (3, 17, 11))
    found = np.where(rng.random(truth.shape) < 0.6, truth, rng.integers(0, classes, truth.shape))
    for each in missing:
        truth[truth == each], found[found == each] = 0, 0
    return found, truth, rng.random(truth.shape) < 0.8


@pytest.mark.proves("semantic segmentation", "mIoU beside scikit-learn's Jaccard index")
@pytest.mark.parametrize(("classes", "missing"), [(2, ()), (7, ()), (5, (3,)), (9, (8, 1))])
def test_each_class_is_that_of_scikit_learn(classes, missing):
    metrics = pytest.importorskip("sklearn.metrics")
    found, truth, counted = maps(classes, classes, missing)
    counts = confusion(found, truth, classes, counted)
    pairs = truth[counted], found[counted]
    np.testing.assert_array_equal(counts, metrics.confusion_matrix(*pairs, labels=range(classes)))
    present = [each for each in range(classes) if each not in missing]
    expected = metrics.jaccard_score(*pairs, labels=present, average=None)
    np.testing.assert_allclose([class_iou(counts)[each] for each in present], expected)
    assert all(np.isnan(class_iou(counts)[each]) for each in missing)
    got = mean_iou(counts)
    np.testing.assert_allclose(got["miou"], expected.mean())
    np.testing.assert_allclose(got["pixel_accuracy"], metrics.accuracy_score(*pairs))
    np.testing.assert_allclose(got["class_accuracy"], metrics.balanced_accuracy_score(*pairs))


def test_a_class_that_is_found_where_it_is_not_counts_as_0():
    counts = confusion(np.array([0, 2]), np.array([0, 0]), 3, np.array([True, True]))
    assert mean_iou(counts) == {"miou": 0.25, "pixel_accuracy": 0.5, "class_accuracy": 0.5}


def test_pixels_of_all_images_are_counted_together():
    """And not the means of images averaged."""
    parts = [confusion(*maps(4, seed)[:2], 4, np.ones((3, 17, 11), bool)) for seed in range(3)]
    found, truth = (np.concatenate([maps(4, seed)[i] for seed in range(3)]) for i in range(2))
    whole = confusion(found, truth, 4, np.ones(truth.shape, bool))
    np.testing.assert_array_equal(sum(parts), whole)


def test_a_class_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="classes must be from 0 to 1, got 0 to 2"):
        confusion(np.array([0, 2]), np.array([0, 0]), 2, np.array([True, True]))
    nothing = np.zeros(3, bool)
    assert np.isnan(mean_iou(confusion(np.full(3, 9), np.zeros(3, int), 2, nothing))["miou"])
