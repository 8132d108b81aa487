"""Panoptic quality beside torchmetrics', where that is installed."""

import numpy as np
import pytest

from flax_transformer.metric.panoptic_quality import class_quality, count_segments, panoptic_quality

torch = pytest.importorskip("torch")
detection = pytest.importorskip("torchmetrics.detection")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

THINGS, STUFF, NONE = {0, 1}, {2, 3}, 9


def drawn(rng, none):
    """Draw classes and numbers of instances in blocks; of stuff there is one instance."""
    classes = rng.choice([0, 1, 2, 3, *([NONE] if none else [])], (4, 5)).repeat(6, 0).repeat(5, 1)
    numbers = np.where(classes < 2, rng.integers(0, 3, (4, 5)).repeat(6, 0).repeat(5, 1), 0)
    return np.stack([classes, numbers], -1)


def segments(pairs):
    ids = pairs[..., 0] * 10 + pairs[..., 1] + 1
    known = np.unique(ids[pairs[..., 0] != NONE])
    return {"numbers": ids, "ids": known, "classes": (known - 1) // 10}


@pytest.mark.parametrize("none", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_quality_is_that_of_torchmetrics(seed, none):
    rng, total = np.random.default_rng(seed), None
    theirs = detection.PanopticQuality(
        things=THINGS, stuffs=STUFF, return_sq_and_rq=True, return_per_class=True, allow_unknown_preds_category=True
    )
    for _ in range(6):
        truth = drawn(rng, none)
        found = np.roll(truth, int(rng.integers(0, 3)), axis=int(rng.integers(0, 2)))
        found = np.where(found[..., :1] == NONE, np.array([2, 0]), found)  # all pixels are told something
        counts = count_segments(segments(found), segments(truth), 4)
        total = counts if total is None else total + counts
        theirs.update(torch.tensor(found[None]), torch.tensor(truth[None]))
    expected, each = theirs.compute().numpy(), class_quality(total)
    np.testing.assert_allclose(np.stack([each["pq"], each["sq"], each["rq"]], -1), expected, atol=1e-6)
    assert 0.05 < panoptic_quality(total)["pq"] < 0.99
