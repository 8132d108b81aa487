"""Average precision against pycocotools."""

import contextlib
import io
import json

import numpy as np
import PIL.Image
import pytest

from flax_transformer.data.image.coco import find_coco, open_coco
from flax_transformer.metric.average_precision import average_precision

coco = pytest.importorskip("pycocotools.coco")
cocoeval = pytest.importorskip("pycocotools.cocoeval")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("average precision", "parity", "pycocotools, to 1e-9"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
NAMES = {"ap": 0, "ap50": 1, "ap75": 2, "ap_small": 3, "ap_medium": 4, "ap_large": 5}


def scene(rng, classes, crowds, spread):
    """Draw boxes in images, and what a detector might find."""
    truth, found = [], []
    for _ in range(12):
        n = int(rng.integers(0, 9))
        corner, extent = rng.random((n, 2)) * 200, rng.random((n, 2)) * rng.choice([20, 60, 200], (n, 1)) + 3
        boxes, labels = np.concatenate([corner, corner + extent], 1), rng.integers(0, classes, n)
        truth.append({"boxes": boxes, "labels": labels, "areas": np.prod(extent, 1) * rng.uniform(0.4, 1, n),
                      "crowd": rng.random(n) < crowds})  # fmt: skip
        at = rng.integers(0, n, int(rng.integers(0, 30))) if n else np.zeros(0, int)
        guessed = boxes[at] + rng.normal(size=(len(at), 4)) * spread * np.tile(extent[at], 2)
        guessed = np.concatenate(
            [np.minimum(guessed[:, :2], guessed[:, 2:]), np.maximum(guessed[:, :2], guessed[:, 2:])], 1
        )
        other = rng.random(len(at)) < 0.2
        found.append({"boxes": guessed, "labels": np.where(other, rng.integers(0, classes + 1, len(at)), labels[at]),
                      "scores": np.round(rng.random(len(at)), 2)})  # fmt: skip
    return found, truth


def wide(boxes):
    return [[float(a), float(b), float(c - a), float(d - b)] for a, b, c, d in boxes]


def theirs(found, truth, classes):
    annotations, results = [], []
    for i, each in enumerate(truth):
        for box, label, area, crowd in zip(
            wide(each["boxes"]), each["labels"], each["areas"], each["crowd"], strict=True
        ):
            annotations.append({"id": len(annotations) + 1, "image_id": i + 1, "category_id": int(label), "bbox": box,
                                "area": float(area), "iscrowd": int(crowd)})  # fmt: skip
    for i, each in enumerate(found):
        for box, label, score in zip(wide(each["boxes"]), each["labels"], each["scores"], strict=True):
            results.append({"image_id": i + 1, "category_id": int(label), "bbox": box, "score": float(score)})
    with contextlib.redirect_stdout(io.StringIO()):
        known = coco.COCO()
        known.dataset = {"images": [{"id": i + 1} for i in range(len(truth))], "annotations": annotations,
                         "categories": [{"id": i} for i in range(classes + 1)]}  # fmt: skip
        known.createIndex()
        scored = cocoeval.COCOeval(known, known.loadRes(results), "bbox")
        scored.evaluate()
        scored.accumulate()
        scored.summarize()
    return {name: float(scored.stats[at]) for name, at in NAMES.items() if scored.stats[at] > -1}


@pytest.mark.parametrize(
    ("classes", "crowds", "spread"), [(1, 0, 0.05), (3, 0, 0.15), (5, 0.3, 0.1), (2, 0.8, 0.02), (40, 0.1, 0.1)]
)
@pytest.mark.parametrize("seed", range(4))
def test_every_number_is_that_of_pycocotools(classes, crowds, spread, seed):
    found, truth = scene(np.random.default_rng(seed), classes, crowds, spread)
    ours, expected = average_precision(found, truth), theirs(found, truth, classes)
    assert ours.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(ours[name], expected[name], rtol=0, atol=1e-9, err_msg=name)


def test_a_json_file_with_crowds_is_scored_as_pycocotools_does(tmp_path):
    """By the areas and crowds that the file tells, through what a run is tested on."""
    found, truth = scene(np.random.default_rng(7), 3, 0.4, 0.1)
    side, number, annotations = 800, 0, []
    for i, each in enumerate(truth):
        each["boxes"] = each["boxes"].round(2)  # as a file has them
        PIL.Image.new("L", (side, side)).save(tmp_path / f"{i}.png")
        for box, label, area, crowd in zip(
            wide(each["boxes"]), *(each[n] for n in ("labels", "areas", "crowd")), strict=True
        ):
            number += 1
            annotations.append({"id": number, "image_id": i, "category_id": int(label), "bbox": box,
                                "area": float(area), "iscrowd": int(crowd)})  # fmt: skip
    images = [{"id": i, "file_name": f"{i}.png", "width": side, "height": side} for i in range(len(truth))]
    categories = [{"id": i, "name": f"class {i}"} for i in range(4)]
    file = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "train.json").write_text(json.dumps(file))
    splits, _, _ = open_coco(tmp_path, find_coco(tmp_path))
    ours = average_precision(found, [each.truth() for each in splits["train"]["objects"]])
    expected = theirs(found, truth, 3)
    assert ours.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(ours[name], expected[name], rtol=0, atol=1e-6, err_msg=name)
