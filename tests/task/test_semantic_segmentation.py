"""Images with maps of classes: a folder in ADE20K's form, drawn scenes, what is changed alike, the loss, the recipe."""

import jax
import numpy as np
import PIL.Image
import pytest
from flax import nnx

from flax_transformer.data.image.class_map import ClassMapData, CropMap, FlipMap, MapRows, ResizeMap
from flax_transformer.data.synthetic import SHAPES, SceneMapData, ShapeScenes, draw_shape
from flax_transformer.models.vision.segformer import SegFormerConfig, with_mlp_head
from flax_transformer.nn import transformer_block
from flax_transformer.objective import PixelLabelLoss
from flax_transformer.task.opened import Context
from flax_transformer.task.semantic_segmentation import SegmentationEvaluator, SegmentationImages
from flax_transformer.train.folder import RunFolder


def ade(root, splits=("training", "validation"), count=6, mode="L"):
    """Write a folder in ADE20K's form: images of several sizes, whose red channel is their class times 40."""
    rng = np.random.default_rng(0)
    for split in splits:
        for kind in ("images", "annotations"):
            (root / kind / split).mkdir(parents=True)
        for number in range(count):
            numbers = rng.integers(0, 4, (20 + number, 33)).astype(np.uint8)
            pixels = np.stack([40 * numbers, 0 * numbers, 0 * numbers], -1)
            PIL.Image.fromarray(pixels).save(root / "images" / split / f"p{number}.png")
            drawn = PIL.Image.fromarray(numbers)
            if mode == "P":
                drawn.putpalette([each % 256 for each in range(768)])
            drawn.save(root / "annotations" / split / f"p{number}.png")
    return str(root)


@pytest.mark.parametrize("mode", ["L", "P"])
def test_a_folder_of_two_folders_is_read(tmp_path, mode):
    found = ClassMapData(root=ade(tmp_path, mode=mode)).open()
    assert (found.kind, found.classes) == ("maps", ("0", "1", "2", "3"))
    assert [len(found.splits[split]["image"]) for split in ("train", "validation", "test")] == [5, 6, 1]
    for table in found.splits.values():
        for number in range(len(table["image"])):
            red = np.asarray(table["image"][number])[..., 0]
            np.testing.assert_array_equal(red, 40 * np.asarray(table["map"][number]))


def test_0_is_no_class_where_it_is_said(tmp_path):
    data = ClassMapData(root=ade(tmp_path), reduce=True, names=("a", "b", "c"))
    found = data.open()
    assert found.classes == ("a", "b", "c")
    example = {name: found.splits["train"][name][0] for name in ("image", "map")}
    numbers = np.asarray(example["map"])
    batch = MapRows(classes=3, reduce=True)([example, None])
    np.testing.assert_array_equal(batch["weights"][0], numbers > 0)
    np.testing.assert_array_equal(batch["labels"][0][numbers > 0], numbers[numbers > 0] - 1)
    assert not batch["weights"][1].any()


def test_255_is_no_class():
    numbers = np.array([[0, 255], [1, 255]], np.uint8)
    batch = MapRows(classes=2)([{"image": PIL.Image.new("RGB", (2, 2)), "map": PIL.Image.fromarray(numbers)}])
    assert batch["weights"].tolist() == [[[1, 0], [1, 0]]]
    assert batch["labels"].tolist() == [[[0, 0], [1, 0]]]
    with pytest.raises(ValueError, match="classes below 1, got 1"):
        MapRows(classes=1)([{"image": PIL.Image.new("RGB", (2, 2)), "map": PIL.Image.fromarray(numbers)}])


@pytest.mark.parametrize(
    ("harm", "error", "rule"),
    [
        (lambda root: (root / "annotations/training/p2.png").unlink(), ValueError, "p2.png must have a map"),
        (lambda root: (root / "annotations").rename(root / "maps"), FileNotFoundError, "annotations is not there"),
        (lambda root: (root / "annotations/training/p2.png").write_bytes(b"x"), ValueError, "PNG of class numbers"),
        (
            lambda root: PIL.Image.new("RGB", (33, 22)).save(root / "annotations/training/p2.png"), ValueError,
            "one number of 8 bits a pixel, it is of mode RGB",
        ),
    ],
)  # fmt: skip
def test_what_is_no_such_folder_is_refused(tmp_path, harm, error, rule):
    root = ade(tmp_path)
    harm(tmp_path)
    with pytest.raises(error, match=rule):
        ClassMapData(root=root).open()


@pytest.mark.parametrize("change", [ResizeMap(size=(64, 66)), FlipMap(share=1.0), CropMap(least=0.4)])
def test_images_and_maps_are_changed_alike(change):
    """A class is a colour here, and stays it but where colours are blended."""
    numbers = np.kron(np.arange(6).reshape(2, 3), np.ones((16, 11), int)).astype(np.uint8)
    image = PIL.Image.fromarray(np.stack([40 * numbers] * 3, -1))
    found = change({"image": image, "map": PIL.Image.fromarray(numbers)}, np.random.default_rng(3))
    red, after = np.asarray(found["image"])[..., 0], np.asarray(found["map"])
    assert red.shape == after.shape
    assert set(np.unique(after)) <= set(range(6))
    same = red == 40 * after
    assert same.mean() > 0.85
    assert not isinstance(change, FlipMap) or (same.all() and (after == numbers[:, ::-1]).all())


def test_maps_of_scenes_are_the_shapes_that_are_drawn():
    scenes = ShapeScenes(train=5, held_out=2, noise=0.0, size=64)
    found = SceneMapData(shapes=scenes).open()
    assert found.classes == ("ground", *SHAPES)
    for number in range(5):
        pixels, numbers = (np.asarray(found.splits["train"][name][number]) for name in ("image", "map"))
        ground = pixels[numbers == 0]
        assert (ground == ground[0]).all()
        objects = scenes.layout(number)
        for box, label in zip(objects.boxes.astype(int), objects.classes, strict=True):
            part = numbers[box[1] : box[3], box[0] : box[2]]
            np.testing.assert_array_equal(part == label + 1, draw_shape(SHAPES[label], *part.shape))
            assert len(np.unique(pixels[box[1] : box[3], box[0] : box[2]][part > 0], axis=0)) == 1


def small():
    first = transformer_block(embed=8, heads=1, inner=12, norm_eps=1e-5, norm_position="pre", activation="gelu")
    encoder = SegFormerConfig(
        first=first, widths=(8, 12), depths=(1, 1), stage_heads=(1, 2), inners=(12, 16), windows=(7, 3), strides=(4, 2),
        reductions=(2, 1),
    )  # fmt: skip
    return with_mlp_head(encoder, 5, embed=16, dropout=0.0).build(nnx.Rngs(0))


@pytest.mark.rotates
def test_a_model_is_scored_by_pixels_that_have_a_class(tmp_path):
    opened = SegmentationImages(rows=4, size=32).open(
        SceneMapData(shapes=ShapeScenes(train=8, held_out=3, size=64)), Context(folder=RunFolder(tmp_path))
    )
    batch = next(iter(opened.validation()))
    assert batch["labels"].shape == (4, 32, 32)
    assert batch["weights"].reshape(4, -1).mean(1).tolist() == [1, 1, 1, 0]
    metrics = SegmentationEvaluator().validate(small(), opened.validation())
    assert 0 <= metrics["miou"] < 0.5
    total, found = PixelLabelLoss()(small(), jax.tree.map(np.asarray, batch))
    assert found["count"] == 3 * 32 * 32
    np.testing.assert_allclose(found["accuracy"] / found["count"], metrics["pixel_accuracy"], rtol=1e-5)
    assert np.isfinite(total)


@pytest.mark.parity
@pytest.mark.proves("semantic segmentation", "the loss of `SegformerForSemanticSegmentation` in `transformers`")
def test_the_loss_is_that_of_transformers(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from flax_transformer import hub

    torch.manual_seed(0)
    config = transformers.SegformerConfig(
        num_encoder_blocks=2, hidden_sizes=[8, 12], depths=[1, 1], num_attention_heads=[1, 2], sr_ratios=[2, 1],
        decoder_hidden_size=8, num_labels=5, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.SegformerForSemanticSegmentation(config).eval()
    model.save_pretrained(tmp_path)
    rng = np.random.default_rng(0)
    pixels = rng.standard_normal((2, 3, 37, 51), dtype=np.float32)
    labels = rng.integers(0, 5, (2, 37, 51))
    labels[rng.random(labels.shape) < 0.2] = 255
    with torch.no_grad():
        expected = model(torch.tensor(pixels), labels=torch.tensor(labels)).loss.item()
    real = labels != 255
    batch = {"labels": np.where(real, labels, 0).astype(np.int32), "weights": real.astype(np.float32)}
    batch["inputs"] = {"images": np.moveaxis(pixels, 1, -1)}
    total, metrics = PixelLabelLoss()(hub.load(tmp_path).model, batch)
    np.testing.assert_allclose(total / metrics["count"], expected, rtol=1e-5)
