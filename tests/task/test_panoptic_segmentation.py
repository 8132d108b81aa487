"""Images with segments: folders in COCO's form, maps of classes, generated scenes; and how answers are scored."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

from flax_transformer.data.image.class_map import ClassMapData, CropMap, FlipMap, ResizeMap
from flax_transformer.data.image.panoptic import PanopticData
from flax_transformer.data.image.segment import ClassSegments, SegmentMap, SegmentRows
from flax_transformer.data.synthetic import SHAPES, HorizonScenes, SceneSegmentData, draw_shape
from flax_transformer.models.vision.mask2former import MaskOutput
from flax_transformer.task.opened import Context
from flax_transformer.task.panoptic_segmentation import HeldSegments, PanopticEvaluator, PanopticImages
from flax_transformer.train.folder import RunFolder
from tests.data.image.test_panoptic import write
from tests.task.test_semantic_segmentation import ade

RNG = np.random.default_rng(0)


def opened(examples, data, folder):
    return examples.open(data, Context(folder=RunFolder(folder)))


def test_segments_are_numbered_by_their_places():
    numbers = np.array([[7, 0, 300], [5, 5, 7]])
    said = {"ids": np.array([300, 5, 7]), "classes": np.array([2, 0, 2]), "crowd": np.array([False, True, False])}
    image = PIL.Image.new("RGB", (3, 2))
    example = SegmentMap()({"image": image, "segments": {"numbers": numbers, **said}}, RNG)
    assert np.asarray(example["map"]).tolist() == [[3, 0, 1], [2, 2, 3]]
    unseen = {**example, "map": PIL.Image.fromarray(np.array([[3, 0, 3], [2, 2, 3]], np.int32))}
    batch = SegmentRows(segments=4)([example, None, unseen])
    labels = batch["labels"]
    assert labels["segments"].tolist() == [[[2, -1, 0], [1, 1, 2]], [[-1] * 3] * 2, [[2, -1, 2], [1, 1, 2]]]
    assert labels["classes"].tolist() == [[2, 0, 2, 0], [0] * 4, [2, 0, 2, 0]]
    assert labels["weights"].tolist() == [[1, 0, 1, 0], [0] * 4, [0, 0, 1, 0]]
    assert labels["crowd"].tolist() == [[False, True, False, False], [False] * 4, [False, True, False, False]]
    assert batch["weights"].tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match="not have more than 2 segments, got 3"):
        SegmentRows(segments=2)([example])


@pytest.mark.parametrize(("reduce", "classes"), [(False, [0, 1, 3]), (True, [0, 2])])
def test_all_pixels_of_a_class_are_a_segment(reduce, classes):
    numbers = np.array([[0, 255, 1], [3, 3, 0]], np.uint8)
    found = ClassSegments(reduce=reduce)({"map": PIL.Image.fromarray(numbers)}, RNG)["segments"]
    assert found["classes"].tolist() == classes
    assert not found["crowd"].any()
    for id, label in zip(found["ids"], found["classes"], strict=True):
        np.testing.assert_array_equal(found["numbers"] == id, numbers == label + reduce)
    assert set(np.unique(found["numbers"])) - {0} == set(found["ids"].tolist())


@pytest.mark.parametrize("change", [ResizeMap(size=(64, 66)), FlipMap(share=1.0), CropMap(least=0.4)])
def test_images_and_many_segments_are_changed_alike(change):
    """A segment's number is its colour here, of more than a byte."""
    numbers = np.kron(300 + np.arange(6).reshape(2, 3), np.ones((16, 11), int))
    image = PIL.Image.fromarray(np.stack([40 * (numbers - 300)] * 3, -1).astype(np.uint8))
    place = PIL.Image.fromarray(numbers.astype(np.int32))
    found = change({"image": image, "map": place}, np.random.default_rng(3))
    red, after = np.asarray(found["image"])[..., 0], np.asarray(found["map"])
    assert red.shape == after.shape
    assert set(np.unique(after)) <= set(range(300, 306))
    assert (red == 40 * (after - 300)).mean() > 0.85


def test_segments_of_scenes_are_the_shapes_that_are_drawn():
    scenes = HorizonScenes(train=5, held_out=2, noise=0.0, size=64)
    found = SceneSegmentData(shapes=scenes).open()
    assert found.classes == (*SHAPES, "sky", "floor")
    assert found.things == (True,) * 4 + (False,) * 2
    for number in range(5):
        pixels, segments = np.asarray(found.splits["train"]["image"][number]), found.splits["train"]["segments"][number]
        numbers, objects = segments["numbers"], scenes.layout(number)
        assert segments["classes"].tolist() == [4, 5, *objects.classes]
        for i, (box, label) in enumerate(zip(objects.boxes.astype(int), objects.classes, strict=True)):
            part = numbers[box[1] : box[3], box[0] : box[2]] == 3 + i
            np.testing.assert_array_equal(part, draw_shape(SHAPES[label], *part.shape))
            assert len(np.unique(pixels[numbers == 3 + i], axis=0)) == 1
        rows = np.indices(numbers.shape)[0]
        assert rows[numbers == 1].max() < scenes.horizon(number) <= rows[numbers == 2].min()
        assert [len(np.unique(pixels[numbers == each], axis=0)) for each in (1, 2)] == [1, 2]


def test_a_folder_of_cocos_form_is_laid_out(tmp_path):
    found = opened(PanopticImages(rows=4, size=32), PanopticData(root=str(write(tmp_path))), tmp_path)
    assert found.spec.objects[0] == 2
    assert found.held.things == (True, False)
    assert found.held.stuff == (1,)
    batches = list(found.validation())
    assert [batch["weights"].sum() for batch in batches] == [4, 2]
    for batch in batches:
        real, crowd = batch["labels"]["weights"], batch["labels"]["crowd"]
        there = np.flatnonzero(batch["weights"])
        np.testing.assert_array_equal((real + crowd)[there], 1)
        assert [crowd[row].tolist() for row in there] == [[bool(row % 2), False] for row in there]
    with pytest.raises(ValueError, match=r"segments must be at least as many as an image has, got 1, 2 in .*\.jpg"):
        opened(PanopticImages(rows=4, size=32, segments=1), PanopticData(root=str(tmp_path)), tmp_path)


def test_maps_of_classes_are_laid_out(tmp_path):
    found = opened(PanopticImages(rows=4, size=32), ClassMapData(root=ade(tmp_path), reduce=True), tmp_path)
    assert found.held.stuff == (0, 1, 2)
    labels = next(iter(found.batches))["labels"]
    assert labels["weights"].tolist() == [[1, 1, 1]] * 4
    assert labels["classes"].tolist() == [[0, 1, 2]] * 4
    assert (labels["segments"] == -1).any()


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: PanopticImages(segments=0), "segments must be at least 1, got 0"),
        (lambda: PanopticImages(crop=0.0), r"crop must be in \(0, 1\], got 0.0"),
        (lambda: PanopticEvaluator(threshold=1.5), "threshold must be from 0 to 1, got 1.5"),
        (lambda: PanopticEvaluator(overlap=-0.1), "overlap must be from 0 to 1, got -0.1"),
    ],
)
def test_options_that_cannot_work_are_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


# How answers are scored: each is of a place for a segment, and the last query has none.


def answered(labels, classes, sure=20.0):
    """Answer every segment rightly, stuff by two queries."""
    places = labels["segments"][:, None] == np.arange(labels["weights"].shape[1])[:, None, None]
    halves = np.arange(places.shape[-1]) < places.shape[-1] // 2
    there = labels["weights"] > 0
    said = np.where(there, labels["classes"], classes)
    said = np.concatenate([said, np.where(labels["classes"] >= 4, said, classes)], axis=1)
    stuff = (labels["classes"] >= 4)[..., None, None]
    masks = np.concatenate([places & (halves | ~stuff), places & ~halves & stuff], axis=1)
    logits = sure * np.eye(classes + 1, dtype=np.float32)[said]
    return {"logits": logits, "masks": (sure * (2.0 * masks - 1)).astype(np.float32)}


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    data = SceneSegmentData(shapes=HorizonScenes(size=64, train=4, held_out=3))
    found = opened(PanopticImages(rows=2, size=48), data, tmp_path_factory.mktemp("run"))
    return [{**batch, "inputs": answered(batch["labels"], 6)} for batch in found.validation()]


def measured(batches, things=(True,) * 4 + (False,) * 2, **options):
    held = HeldSegments(table=None, transforms=(), normalise=None, things=things)
    model = jax.tree_util.Partial(lambda logits, masks: MaskOutput(jnp.asarray(logits), jnp.asarray(masks)))
    finished = SimpleNamespace(model=model, opened=SimpleNamespace(held=held, validation=lambda: batches))
    return PanopticEvaluator(**options).watch(finished, 0)


def test_right_answers_are_of_full_quality(batches):
    found = measured(batches)
    for name in ("pq", "sq", "rq", "pq_things", "pq_stuff", "miou", "pixel_accuracy"):
        assert found[name] == 1.0, name


def test_parts_of_stuff_are_one_and_parts_of_things_are_not(batches):
    found = measured(batches, things=(True,) * 6)
    assert found["pq"] < 0.9
    assert found["miou"] == 1.0


def test_wrong_classes_and_lost_segments_cost(batches):
    first = batches[0]["labels"]["classes"][0, 2]
    wrong = [{**each, "inputs": dict(each["inputs"])} for each in batches]
    logits = wrong[0]["inputs"]["logits"].copy()
    logits[0, 2] = np.roll(logits[0, 2], 1 if first < 3 else -1)
    wrong[0]["inputs"]["logits"] = logits
    found = measured(wrong)
    assert found["pq_stuff"] == 1.0
    assert found["pq_things"] < 1.0
    assert found["miou"] < 1.0
    unsure = [{**each, "inputs": {**each["inputs"], "logits": each["inputs"]["logits"] / 9}} for each in batches]
    assert measured(unsure, threshold=0.7)["pq"] == 0.0  # they are sure by 0.61
    assert measured(unsure)["pq"] == 1.0
