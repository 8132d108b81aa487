"""Image processors against those of transformers that use Pillow: pixel for pixel, and the files both ways."""

import json

import numpy as np
import PIL.Image
import pytest

from flax_transformer.hub.processor.detection import post_process_object_detection
from flax_transformer.hub.processor.image import ImageProcessor, load_image_processor
from flax_transformer.hub.processor.image_kind import FAMILIES, KINDS
from tests.hub.image_case import CLUSTERS, CONFIGS, attempt, picture

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves(
        "image processors",
        "parity",
        "pixel for pixel: ViT, DeiT, PVT, BEiT, ImageGPT, ConvNeXt, BiT, CLIP, BLIP, SigLIP, SigLIP 2, DETR, "
        "Mask2Former, ViLT, VideoMAE, ViViT, Qwen2-VL",
    ),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]


def theirs(config):
    """Make the processor of transformers that uses Pillow."""
    kind = config.get("image_processor_type") or config["feature_extractor_type"]
    for ending in ("Fast", "FeatureExtractor", "ImageProcessor"):
        kind = kind.removesuffix(ending)
    if kind == "Vivit":  # there is one alone
        return transformers.VivitImageProcessor(**config)
    name = {"Qwen2VL": "qwen2_vl"}.get(kind, kind.lower())
    module = __import__(f"transformers.models.{name}.image_processing_pil_{name}", fromlist=[kind])
    return getattr(module, f"{kind}ImageProcessorPil")(**config)


def same(ours, expected, where):
    assert (ours is None) == (expected is None), (where, ours is None, expected is None)
    if ours is not None:
        assert ours.keys() == expected.keys(), where
        for name in ours:
            assert ours[name].dtype == (np.float32 if name == "pixel_values" else np.int32)
            np.testing.assert_array_equal(ours[name], expected[name], err_msg=str(where))


@pytest.mark.rotates
@pytest.mark.parametrize("name", CONFIGS)
def test_two_hundred_pictures_are_the_same_bit_for_bit(name):
    ours, expected = ImageProcessor.of(CONFIGS[name]), theirs(CONFIGS[name])
    made = 0
    for seed in range(200):
        image = picture(seed)
        result = attempt(expected, image)
        made += result is not None
        same(attempt(ours, image), result, (name, seed, image.mode, image.size))
    assert made >= (28 if not ours.rgb else 180)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "DINOv3ViT"])  # which has none by Pillow
def test_what_is_not_said_is_assumed_as_transformers_does(kind):
    config = {"image_processor_type": f"{kind}ImageProcessor"} | ({"clusters": CLUSTERS} if kind == "ImageGPT" else {})
    for seed in (0, 9, 14):
        image = picture(seed).convert("RGB")
        same(attempt(ImageProcessor.of(config), image), attempt(theirs(config), image), kind)


@pytest.mark.parametrize(
    "name", [name for name in FAMILIES if name not in ("pvt_v2", "vit_msn", "regnet", "dinov3_vit")]
)
def test_a_model_has_the_processor_that_transformers_gives_it(name, tmp_path):
    size = {"shortest_edge": 300, "longest_edge": 4_000} if name.startswith("qwen2") else 28
    options = {"size": size, "crop_size": 24, "clusters": CLUSTERS}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(options))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    found = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    image = picture(14)
    same(attempt(load_image_processor(tmp_path), image), attempt(found, image), name)


@pytest.mark.parametrize(
    "name",
    [
        "vit_fast",
        "clip",
        "convnext",
        "detr",
        "detr_old",
        "imagegpt",
        "siglip",
        "siglip2",
        "vilt",
        "vit_pad",
        "qwen2_vl",
    ],
)
def test_a_batch_is_the_same_bit_for_bit(name):
    images = [picture(seed).convert("RGB") for seed in range(9)]
    ours = ImageProcessor.of(CONFIGS[name])(images)
    expected = theirs(CONFIGS[name])(images, return_tensors="np")
    same(ours, {name: np.asarray(value) for name, value in expected.items()}, name)
    assert len(ours.get("image_grid_thw", next(iter(ours.values())))) == 9


ARRAYS = {
    "bytes last": lambda rng: rng.integers(0, 256, (41, 30, 3), np.uint8),
    "bytes first": lambda rng: rng.integers(0, 256, (3, 41, 30), np.uint8),
    "four channels": lambda rng: rng.integers(0, 256, (41, 30, 4), np.uint8),
    "one channel": lambda rng: rng.integers(0, 256, (41, 30, 1), np.uint8),
    "one channel first": lambda rng: rng.integers(0, 256, (1, 41, 30), np.uint8),
    "shares": lambda rng: rng.random((41, 30, 3)).astype(np.float32),
    "shares of 64 bits": lambda rng: rng.random((3, 41, 30)),
    "shares of 16 bits": lambda rng: rng.random((3, 41, 30)).astype(np.float16),
    "shares with transparency": lambda rng: rng.random((41, 30, 4)).astype(np.float32),
    "whole floats": lambda rng: rng.integers(0, 256, (41, 30, 3)).astype(np.float32),
    "integers": lambda rng: rng.integers(0, 256, (41, 30, 3)),
    "too large": lambda rng: rng.integers(0, 300, (41, 30, 3)),
    "negative": lambda rng: rng.normal(size=(41, 30, 3)),
    "truths": lambda rng: rng.random((41, 30, 3)) > 0.5,
    "several": lambda rng: rng.integers(0, 256, (2, 41, 30, 3), np.uint8),
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("name", ["vit", "clip", "vit_as_it_is", "vit_one_mean", "clip_only_crop", "detr", "imagegpt"])
def test_arrays_are_the_same_bit_for_bit(name, kind):
    array = ARRAYS[kind](np.random.default_rng(1))
    expected = attempt(theirs(CONFIGS[name]), array)
    if expected is not None and "pixel_values" in expected:
        expected["pixel_values"] = expected["pixel_values"].astype(np.float32)
    same(attempt(ImageProcessor.of(CONFIGS[name]), array), expected, (name, kind))


@pytest.mark.parametrize("name", CONFIGS)
def test_files_are_read_and_written_both_ways(name, tmp_path):
    image = picture(7).convert("RGB")
    theirs(CONFIGS[name]).save_pretrained(tmp_path / "theirs")
    expected = attempt(theirs(CONFIGS[name]), image)
    ours = load_image_processor(tmp_path / "theirs")
    same(attempt(ours, image), expected, name)
    ours.save(tmp_path / "again")
    ImageProcessor.of(CONFIGS[name]).save(tmp_path / "ours")
    for folder in ("again", "ours"):
        found = transformers.AutoImageProcessor.from_pretrained(tmp_path / folder, backend="pil")
        assert type(found) is type(theirs(CONFIGS[name]))
        same(attempt(ours, image), attempt(found, image), (name, folder))


def test_a_file_is_the_picture_that_transformers_loads(tmp_path):
    """But for one with transparency, whose loader drops it where its processors lay it on white, as is done here."""
    from transformers.image_transforms import convert_to_rgb

    image = picture(0).convert("RGB")
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.png", exif=exif)
    picture(4).save(tmp_path / "clear.png")
    picture(3).save(tmp_path / "palette.png")
    picture(5).save(tmp_path / "cmyk.jpg")
    for name in ("vit", "clip", "detr"):
        for path in tmp_path.iterdir():
            given = str(path)
            if path.name == "clear.png":
                given = PIL.Image.fromarray(convert_to_rgb(PIL.Image.open(path), return_numpy=True))
            same(
                attempt(ImageProcessor.of(CONFIGS[name]), path),
                attempt(theirs(CONFIGS[name]), given),
                (name, path.name),
            )
            same(
                ImageProcessor.of(CONFIGS[name])(path.read_bytes()),
                ImageProcessor.of(CONFIGS[name])(str(path)),
                path.name,
            )


def test_a_processor_of_several_inputs_holds_the_options_of_pictures(tmp_path):
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"processor_class": "CLIPProcessor", "image_processor": CONFIGS["clip"]})
    )
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "ViTImageProcessor"}))
    found = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    image = picture(1)
    same(attempt(load_image_processor(tmp_path), image), attempt(found, image), "nested")


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("sizes", [None, [(480, 640), (31, 77), (1, 1)]])
def test_objects_are_those_of_transformers(threshold, sizes):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 50, 7)).astype(np.float32) * 2
    boxes = rng.random((3, 50, 4)).astype(np.float32)
    outputs = transformers.models.detr.modeling_detr.DetrObjectDetectionOutput(
        logits=torch.tensor(logits), pred_boxes=torch.tensor(boxes)
    )
    expected = theirs(CONFIGS["detr"]).post_process_object_detection(outputs, threshold, sizes)
    ours = post_process_object_detection(logits, boxes, sizes, threshold=threshold)
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(one["labels"], other["labels"])
        np.testing.assert_array_equal(one["boxes"], other["boxes"])
        np.testing.assert_allclose(one["scores"], other["scores"], rtol=1e-6)
    assert threshold > 0.2 or min(len(each["scores"]) for each in ours) > 20


@pytest.mark.parametrize("name", ["videomae", "vivit", "vivit_share"])
@pytest.mark.parametrize("size", [(41, 67), (67, 23), (24, 24), (15, 90)])
def test_clips_are_the_same_bit_for_bit(name, size):
    clip = list(np.random.default_rng(0).integers(0, 256, (5, *size, 3), np.uint8))
    ours, expected = ImageProcessor.of(CONFIGS[name]), theirs(CONFIGS[name])
    for videos, shape in ((clip, (1, 5)), ([clip[:3], clip[2:]], (2, 3)), (clip[0], (1, 1))):
        found = attempt(ours, videos)
        same(found, attempt(expected, videos), (name, size))
        assert found["pixel_values"].shape[:2] == shape
    drawn = [PIL.Image.fromarray(frame) for frame in clip]
    np.testing.assert_array_equal(ours(drawn)["pixel_values"], ours(np.stack(clip))["pixel_values"])
