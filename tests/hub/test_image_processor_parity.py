"""Image processors against those of transformers that use Pillow: pixel for pixel, and the files both ways."""

import json

import numpy as np
import PIL.Image
import pytest

from flax_transformer.hub.processor.image import ImageProcessor, load_image_processor

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves(
        "image processors",
        "parity",
        "pixel for pixel: ViT, DeiT, PVT, BEiT, ImageGPT, ConvNeXt, BiT, CLIP, BLIP, SigLIP, DETR",
    ),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]

CLUSTERS = [[round(float(x), 4) for x in row] for row in np.random.default_rng(0).uniform(-1, 1, (17, 3))]
SMALL = {"height": 24, "width": 24}
CONFIGS = {
    "vit": {"image_processor_type": "ViTImageProcessor", "size": SMALL},
    "vit_old": {
        "feature_extractor_type": "ViTFeatureExtractor", "size": 21, "resample": 3, "image_mean": [0.1, 0.2, 0.3],
    },
    "vit_fast": {
        "image_processor_type": "ViTImageProcessorFast", "size": [19, 30], "resample": 0, "do_convert_rgb": True,
    },
    "vit_crop": {
        "image_processor_type": "ViTImageProcessor", "size": {"shortest_edge": 25}, "crop_size": 31, "resample": 1,
        "do_center_crop": True, "do_convert_rgb": True, "rescale_factor": 0.00784313725490196,
    },
    "vit_as_it_is": {
        "image_processor_type": "ViTImageProcessor", "size": 24, "resample": 5, "do_rescale": False,
        "do_normalize": False,
    },
    "vit_one_mean": {"image_processor_type": "ViTImageProcessor", "size": 24, "image_mean": 0.4, "image_std": 0.3},
    "vit_pad": {
        "image_processor_type": "ViTImageProcessor", "size": {"max_height": 30, "max_width": 41}, "do_pad": True,
        "pad_size": {"height": 45, "width": 47}, "do_convert_rgb": True,
    },
    "deit": {"image_processor_type": "DeiTImageProcessor", "size": 29, "crop_size": {"height": 24, "width": 20}},
    "pvt": {"image_processor_type": "PvtImageProcessor", "size": SMALL, "resample": 4},
    "beit": {
        "image_processor_type": "BeitImageProcessor", "size": 30, "crop_size": 23, "do_center_crop": True,
        "do_reduce_labels": True,
    },
    "imagegpt": {"image_processor_type": "ImageGPTImageProcessor", "size": 13, "clusters": CLUSTERS},
    "imagegpt_pixels": {"image_processor_type": "ImageGPTImageProcessor", "size": 13, "do_color_quantize": False},
    "convnext": {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 28}, "crop_pct": 0.875},
    "convnext_pct": {"feature_extractor_type": "ConvNextFeatureExtractor", "size": 33, "crop_pct": 0.95, "resample": 2},
    "convnext_large": {"image_processor_type": "ConvNextImageProcessor", "size": 384},
    "bit": {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 26}, "crop_size": SMALL},
    "bit_odd": {"image_processor_type": "BitImageProcessor", "size": 27, "crop_size": {"height": 33, "width": 22}},
    "clip": {"image_processor_type": "CLIPImageProcessor", "size": 26, "crop_size": 26, "do_convert_rgb": None},
    "clip_old": {"feature_extractor_type": "CLIPFeatureExtractor", "size": 22, "crop_size": 22, "resample": 3},
    "clip_only_crop": {
        "image_processor_type": "CLIPImageProcessor", "do_resize": False, "crop_size": {"height": 37, "width": 36},
    },
    "blip": {"image_processor_type": "BlipImageProcessor", "size": {"height": 22, "width": 31}},
    "siglip": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 31, "width": 17}},
    "detr": {
        "image_processor_type": "DetrImageProcessor", "size": {"shortest_edge": 30, "longest_edge": 50},
        "do_convert_rgb": True,
    },
    "detr_old": {
        "feature_extractor_type": "DetrFeatureExtractor", "size": 31, "max_size": 40, "format": "coco_detection",
    },
    "detr_square": {
        "image_processor_type": "DetrImageProcessor", "size": {"height": 30, "width": 20}, "pad_size": 37,
        "do_convert_rgb": True,
    },
    "detr_no_pad": {
        "image_processor_type": "DetrImageProcessor", "size": SMALL, "pad_and_return_pixel_mask": False,
        "do_convert_rgb": True,
    },
}  # fmt: skip
MODES = ("RGB", "L", "LA", "P", "RGBA", "CMYK", "1", "I;16", "F", "RGB", "PA", "I", "YCbCr", "HSV")


def theirs(config):
    """Make the processor of transformers that uses Pillow."""
    kind = config.get("image_processor_type") or config["feature_extractor_type"]
    for ending in ("Fast", "FeatureExtractor", "ImageProcessor"):
        kind = kind.removesuffix(ending)
    module = __import__(f"transformers.models.{kind.lower()}.image_processing_pil_{kind.lower()}", fromlist=[kind])
    return getattr(module, f"{kind}ImageProcessorPil")(**config)


def picture(seed):
    """Draw a picture of an odd size in one of the modes, smooth in parts."""
    rng = np.random.default_rng(seed)
    mode = MODES[seed % len(MODES)]
    width, height = rng.integers(1, 90, 2) if seed % 7 else (int(rng.integers(1, 5)), int(rng.integers(30, 60)))
    rough = rng.integers(0, 256, (max(height // 3, 1), max(width // 3, 1), 4), np.uint8)
    image = PIL.Image.fromarray(rough).resize((int(width), int(height)), PIL.Image.Resampling.BILINEAR)
    if mode == "I;16":
        return PIL.Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * (1 + seed % 3))
    if mode == "F":
        return PIL.Image.fromarray(np.asarray(image.convert("L")) / np.float32(1 if seed % 3 else 255))
    if mode in ("LA", "RGBA", "PA"):
        return image.convert("LA").convert("PA") if mode == "PA" else image.convert(mode)
    image = image.convert("RGB").convert(mode)
    if mode == "P" and seed % 2:
        image.info["transparency"] = 3
    return image


def attempt(processor, images):
    """Call a processor; None where it refuses."""
    try:
        return {name: np.asarray(value) for name, value in processor(images, return_tensors="np").items()}
    except ValueError:
        return None


def same(ours, expected, where):
    assert (ours is None) == (expected is None), (where, ours is None, expected is None)
    if ours is not None:
        assert ours.keys() == expected.keys(), where
        for name in ours:
            assert ours[name].dtype == (np.float32 if name == "pixel_values" else np.int32)
            np.testing.assert_array_equal(ours[name], expected[name], err_msg=str(where))


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


@pytest.mark.parametrize("name", ["vit_fast", "clip", "convnext", "detr", "detr_old", "imagegpt", "siglip", "vit_pad"])
def test_a_batch_is_the_same_bit_for_bit(name):
    images = [picture(seed).convert("RGB") for seed in range(9)]
    ours = ImageProcessor.of(CONFIGS[name])(images)
    expected = theirs(CONFIGS[name])(images, return_tensors="np")
    same(ours, {name: np.asarray(value) for name, value in expected.items()}, name)
    assert len(next(iter(ours.values()))) == 9


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
    image = picture(0).convert("RGB")
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.png", exif=exif)
    picture(4).save(tmp_path / "clear.png")
    picture(3).save(tmp_path / "palette.png")
    picture(5).save(tmp_path / "cmyk.jpg")
    for name in ("vit", "clip", "detr"):
        for path in tmp_path.iterdir():
            same(
                attempt(ImageProcessor.of(CONFIGS[name]), path),
                attempt(theirs(CONFIGS[name]), str(path)),
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
