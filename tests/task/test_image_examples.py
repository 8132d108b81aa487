"""Images as examples of a recipe: what is opened, what models are sized by, a small one that learns."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.image import ImageData
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.objective import LabelLoss
from flax_transformer.ops import cross_entropy, soft_cross_entropy
from flax_transformer.task.detection import DetectionImages
from flax_transformer.task.evaluator import evaluate
from flax_transformer.task.image_classification import LabelledImages
from flax_transformer.task.image_input import Augment
from flax_transformer.task.opened import Context
from flax_transformer.task.spec import Spec, sized
from flax_transformer.train.folder import RunFolder
from tests.data.image.image_files import class_folders, coco, coco_folder, idx_folder, pixels, write_image


@pytest.fixture
def context(tmp_path):
    return Context(folder=RunFolder(tmp_path / "run"), seed=1)


def opened(examples, root, context):
    return examples.open(ImageData(root=str(root)), context)


def first(stream):
    batch = next(stream)
    stream.close()
    return batch


EVERYTHING = Augment(shift=1, flip=0.5, jitter=0.3, operations=1, erase=0.3, mixup=0.8, cutmix=1.0)


@pytest.mark.parametrize("augment", [Augment(), Augment(area=0.3), EVERYTHING], ids=["none", "area", "all"])
@pytest.mark.parametrize("memory", [0, 64])
def test_labelled_pictures_are_of_the_size_asked_for(tmp_path, context, augment, memory):
    examples = LabelledImages(rows=4, size=16, augment=augment, memory=memory)
    found = opened(examples, class_folders(tmp_path / "data", classes=("x", "y", "z")), context)
    assert found.spec == Spec(uses=("classification",), classes=("x", "y", "z"), image=(16, 16, 3))
    batch = first(found.batches)
    assert batch["inputs"]["images"].shape == (4, 16, 16, 3)
    assert batch["inputs"]["images"].dtype == np.float32
    assert batch["labels"].shape == ((4, 3) if augment.mixup else (4,))
    assert found.fields["id2label"] == {"0": "x", "1": "y", "2": "z"}
    for batches in (found.validation(), found.test()):
        (batch,) = batches
        assert batch["inputs"]["images"].shape == (4, 16, 16, 3)
        assert batch["weights"].sum() == 3


def test_what_is_held_in_memory_is_seen_as_if_it_were_decoded(tmp_path, context):
    root = class_folders(tmp_path / "data")
    ours, theirs = (
        next(iter(opened(LabelledImages(size=8, keep=0.8, memory=memory), root, context).test())) for memory in (0, 64)
    )
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_grey_pictures_keep_their_size_and_channel(tmp_path, context):
    found = opened(LabelledImages(rows=2), idx_folder(tmp_path / "data"), context)
    assert found.spec.image == (4, 5, 1)
    assert first(found.batches)["inputs"]["images"].shape == (2, 4, 5, 1)


def test_scenes_are_laid_out_with_their_boxes(tmp_path, context):
    examples = DetectionImages(rows=2, size=32, shorter=(12, 20), boxes=3, crop=0.5)
    found = opened(examples, coco_folder(tmp_path / "data"), context)
    most, crowded = found.spec.objects
    assert (most, crowded.endswith("train2017/2.png (train)")) == (2, True)
    spec = Spec(uses=("object-detection",), classes=("cell", "Zelle für Zelle"), image=(32, 32, 3))
    assert replace(found.spec, objects=None) == spec
    batch = first(found.batches)
    assert batch["inputs"]["mask"].shape == (2, 32, 32)
    assert batch["labels"]["boxes"].shape == (2, 3, 4)
    test = list(found.test())
    numbers = np.concatenate([each["labels"]["numbers"][each["weights"] > 0] for each in test])
    assert numbers.tolist() == list(range(len(found.held.table)))
    assert found.held.class_ids == (1, 4)
    for each in test:
        assert each["inputs"]["mask"].any((1, 2)).tolist() == (each["weights"] > 0).tolist()


@pytest.mark.parametrize(
    ("examples", "make", "message"),
    [
        (LabelledImages(), coco_folder, "the images must have classes, they have boxes"),
        (DetectionImages(), class_folders, "the images must have boxes, they have classes"),
        (DetectionImages(boxes=1), coco_folder, r"boxes must be at least as many as an image has, got 1, 2 in .*png"),
        (LabelledImages(mean=(0.5, 0.5)), class_folders, "mean and std must be those of 3 channels, or one for all"),
    ],
)
def test_pictures_that_do_not_fit_are_refused(tmp_path, context, examples, make, message):
    with pytest.raises(ValueError, match=message):
        opened(examples, make(tmp_path / "data"), context)


def test_pictures_of_several_sizes_need_one_to_be_said(tmp_path, context):
    """Before anything is trained, wherever the odd image lies."""
    for split in ("train", "test"):
        root = class_folders(tmp_path / "data" / split).parent
    write_image(root / "test" / "dog" / "3.png", pixels(0, 4, 9))
    with pytest.raises(
        ValueError, match=r"must have one size, or get it by --size: .* has 8 × 6, .*test/dog/3.png 9 × 4"
    ):
        opened(LabelledImages(), root, context)
    opened(LabelledImages(size=8), root, context)


def test_pictures_of_other_channels_than_the_checkpoint_s_are_refused(tmp_path, context):
    half = [0.5, 0.5, 0.5]
    options = {"size": {"height": 8, "width": 8}, "image_mean": half, "image_std": half}
    processor = ImageProcessor.of({"image_processor_type": "ViTImageProcessor", **options})
    golden = Path(__file__).parents[1] / "hub" / "golden" / "vit"
    hub.save(replace(hub.load(golden), processor=processor), tmp_path / "vit")
    with pytest.raises(ValueError, match=r"as many channels as those of the checkpoint \S+vit, 3, got 1"):
        opened(LabelledImages(), idx_folder(tmp_path / "data"), replace(context, init=str(tmp_path / "vit")))


def test_pictures_without_objects_are_refused(tmp_path, context):
    root = coco_folder(tmp_path / "data")
    path = root / "annotations" / "instances_train2017.json"
    path.write_text(json.dumps({**coco(), "annotations": []}))
    with pytest.raises(ValueError, match=r"must have objects, got none in .*png \(train\) and all others"):
        opened(DetectionImages(), root, context)


def test_boxes_of_every_split_are_counted(tmp_path, context):
    root = coco_folder(tmp_path / "data")
    file = coco()
    file["annotations"] += [{**file["annotations"][0], "id": 100 + number} for number in range(4)]
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps(file))
    for number in range(6):
        write_image(root / "val2017" / f"{number}.png")
    with pytest.raises(ValueError, match=r"got 3, 5 in .*val2017/1\.png \(validation\)"):
        opened(DetectionImages(boxes=3), root, context)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LabelledImages(rows=0), "rows must be at least 1"),
        (lambda: LabelledImages(size=0, keep=0.0), r"keep must be in \(0, 1\]|size"),
        (lambda: LabelledImages(std=(0.0,)), "std positive"),
        (lambda: Augment(area=1.5), r"area must be a range in \(0, 1\]"),
        (lambda: Augment(flip=2.0), r"flip must be in \[0, 1\]"),
        (lambda: Augment(shift=-1), "pad must not be negative"),
        (lambda: DetectionImages(shorter=(600,)), "longest goes with a shorter side of at most as much"),
        (lambda: DetectionImages(crop=1.1), r"share must be in \[0, 1\]"),
    ],
)
def test_options_of_examples_are_refused_at_the_door(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@frozen
class Patch:
    """A stand-in for a config that has images."""

    image: tuple[int, int] = (1, 1)
    channels: int = 3


def test_a_model_is_sized_by_the_pictures():
    assert sized(Patch(), Spec(uses=(), image=(28, 30, 1))) == Patch(image=(28, 30), channels=1)
    assert sized(Patch(), Spec(uses=(), vocab=3)) == Patch()


class Linear(nnx.Module):
    """The least model of images."""

    def __init__(self, pixels: int, classes: int):
        self.kernel = nnx.Param(jnp.zeros((pixels, classes)))

    def hidden_states(self, images: Any, *, key: Any = None) -> Any:
        return images.reshape(len(images), -1)

    def output(self, hidden: Any, *, key: Any = None) -> Any:
        return hidden @ self.kernel[...]


def test_a_model_learns_from_mixed_pictures_and_is_tested_on_plain_ones(tmp_path, context):
    """Two classes that differ in brightness alone, with every augmentation of batches."""
    for label, name in enumerate(("dark", "light")):
        for number in range(30):
            array = np.random.default_rng(number).integers(0, 128, (8, 8, 3), np.uint8) + np.uint8(100 * label)
            write_image(tmp_path / "data" / name / f"{number}.png", array)
    examples = LabelledImages(rows=16, augment=Augment(shift=1, flip=0.5, erase=0.2, mixup=0.8, cutmix=1.0))
    found = opened(examples, tmp_path / "data", context)
    objective, model, optimizer = LabelLoss(label_smoothing=0.1), Linear(8 * 8 * 3, 2), optax.adam(0.01)
    state = optimizer.init(model)

    @jax.jit
    def step(model, state, batch):
        grads = jax.grad(lambda model: objective(model, batch)[0] / 16)(model)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(model, updates), state

    for _ in range(60):
        model, state = step(model, state, next(found.batches))
    found.batches.close()
    assert evaluate(objective, model, found.test())["accuracy"] == 1.0


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_soft_labels_is_that_of_optax_and_of_hard_ones_where_they_are(smoothing):
    draw = np.random.default_rng(0)
    logits, weights = jnp.array(draw.normal(size=(6, 5)), jnp.float32), jnp.array([1, 1, 0, 2, 1, 0.5])
    soft = jax.nn.softmax(jnp.array(draw.normal(size=(6, 5)), jnp.float32))
    total, count = soft_cross_entropy(logits, soft, weights, label_smoothing=smoothing)
    expected = optax.softmax_cross_entropy(logits, optax.smooth_labels(soft, smoothing))
    np.testing.assert_allclose(total, jnp.sum(expected * weights), rtol=1e-6)
    assert count == 5.5
    hard = jnp.array([0, 4, 2, 1, 1, 3])
    ours = soft_cross_entropy(logits, jax.nn.one_hot(hard, 5), weights, label_smoothing=smoothing)
    theirs = cross_entropy(logits, hard, weights, label_smoothing=smoothing)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\], got 2"):
        soft_cross_entropy(logits, soft, label_smoothing=2)


def test_accuracy_of_mixed_labels_is_by_the_larger_part():
    model = Linear(2, 2)
    model.kernel[...] = jnp.eye(2)
    images = jnp.array([[3.0, 1.0], [0.0, 1.0], [5.0, 0.0]]).reshape(3, 1, 2, 1)
    labels = jnp.array([[0.7, 0.3], [0.6, 0.4], [0.9, 0.1]])
    batch = {"inputs": {"images": images}, "labels": labels, "weights": jnp.array([1.0, 1.0, 0.0])}
    assert LabelLoss()(model, batch)[1]["accuracy"] == 1.0


def test_mixing_is_refused_where_rows_are_odd(tmp_path, context):
    examples = LabelledImages(rows=3, augment=Augment(mixup=1.0))
    with pytest.raises(ValueError, match="twice the processes, for rows are mixed two by two, got 3 rows"):
        opened(examples, class_folders(tmp_path / "data"), context)
