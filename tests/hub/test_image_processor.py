"""Image processors without transformers: golden pixels, what is asked of them, and what they refuse."""

import json
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from flax_transformer import hub
from flax_transformer.data.image.geometry import new_size
from flax_transformer.hub.convert import load_orbax, save_orbax
from flax_transformer.hub.processor.detection import post_process_object_detection
from flax_transformer.hub.processor.image import ImageProcessor, load_image_processor
from tests.hub.image_case import CONFIGS, SEEN, attempt, picture

CHECKPOINT = Path(__file__).parent / "golden" / "bert"
GOLDEN = np.load(Path(__file__).parent / "golden_pixels.npz")
VIT = {"image_processor_type": "ViTImageProcessor", "size": 8}


@pytest.mark.parametrize("name", CONFIGS)
def test_golden_pixels_are_found_again_bit_for_bit(name):
    for seed in SEEN:
        expected = {key.split("/")[2] for key in GOLDEN if key.startswith(f"{name}/{seed}/")}
        ours = attempt(ImageProcessor.of(CONFIGS[name]), picture(seed))
        assert (ours or {}).keys() == expected
        for key in expected:
            assert ours[key].shape == tuple(GOLDEN[f"{name}/{seed}/{key}/shape"])
            np.testing.assert_array_equal(ours[key].ravel()[::29], GOLDEN[f"{name}/{seed}/{key}"])
    assert ours is not None or not ImageProcessor.of(CONFIGS[name]).rgb


@pytest.mark.parametrize("name", ["vit", "clip", "convnext", "imagegpt", "detr"])
def test_a_batch_is_its_pictures_one_by_one(name):
    processor, images = ImageProcessor.of(CONFIGS[name]), [picture(seed).convert("RGB") for seed in range(3)]
    together = processor(images)
    for i, image in enumerate(images):
        for key, value in processor(image).items():
            there = tuple(slice(n) for n in value.shape[1:])
            np.testing.assert_array_equal(together[key][i][there], value[0])
            assert not together[key][i].sum() - together[key][i][there].sum() or key != "pixel_mask"


def test_channels_first_or_last_pillow_and_a_list_are_the_same_picture():
    image = picture(0)
    array = np.asarray(image)
    processor = ImageProcessor.of(VIT)
    expected = processor(image)["pixel_values"]
    for other in (
        array,
        np.moveaxis(array, -1, 0),
        [image],
        (array,),
        array[None],
        [[image]],
        array.astype(np.float32),
    ):
        np.testing.assert_array_equal(processor(other)["pixel_values"], expected)


def test_grey_arrays_have_one_channel_which_is_repeated_where_pictures_are_made_rgb():
    grey = np.random.default_rng(0).integers(0, 256, (9, 12), np.uint8)
    rgb = ImageProcessor.of(VIT | {"do_convert_rgb": True})
    np.testing.assert_array_equal(
        rgb(grey)["pixel_values"], rgb(np.repeat(grey[..., None], 3, axis=-1))["pixel_values"]
    )
    assert ImageProcessor.of(VIT | {"image_mean": 0.5, "image_std": 0.5})(grey)["pixel_values"].shape == (1, 1, 8, 8)


def test_a_crop_larger_than_the_picture_has_it_in_the_middle_of_zeros():
    processor = ImageProcessor.of(
        VIT | {"do_resize": False, "do_normalize": False, "do_center_crop": True, "crop_size": [5, 2]}
    )
    whole = np.full((2, 5, 3), 255, np.uint8)
    found = processor(whole)["pixel_values"][0, 0]
    np.testing.assert_array_equal(found, [[0, 0], [0, 0], [1, 1], [1, 1], [0, 0]])


def test_padding_is_told_and_zero():
    made = ImageProcessor.of(CONFIGS["detr"])([np.full((30, 40, 3), 200, np.uint8), np.full((40, 30, 3), 90, np.uint8)])
    assert made["pixel_values"].shape == (2, 3, 40, 40)
    np.testing.assert_array_equal(made["pixel_values"][:, 0] != 0, made["pixel_mask"] == 1)
    assert made["pixel_mask"].sum((1, 2)).tolist() == [1200, 1200]


def test_the_nearest_colour_is_chosen():
    processor = ImageProcessor.of(
        {
            "image_processor_type": "ImageGPTFeatureExtractor",
            "size": 2,
            "clusters": [[-1, -1, -1], [1, 1, 1], [1, -1, -1]],
        }
    )
    drawn = np.array([[[250, 9, 9], [9, 9, 9]], [[250, 250, 240], [200, 60, 60]]], np.uint8)
    assert processor(drawn)["input_ids"].tolist() == [[2, 0, 1, 2]]


def test_a_size_keeps_the_shape_of_the_picture_as_nearly_as_it_can():
    for height, width in [(480, 640), (640, 480), (1, 7), (500, 500), (333, 1000)]:
        assert min(new_size({"shortest_edge": 30}, height, width)) == 30
        for size in ({"shortest_edge": 800, "longest_edge": 1333}, {"max_height": 1333, "max_width": 1333}):
            h, w = new_size(size, height, width)
            assert max(h, w) <= 1333
            assert abs(h / w - height / width) < 0.02 * height / width or height == 1


def test_options_change_for_one_call_or_in_a_copy_and_the_processor_stays():
    processor, image = ImageProcessor.of(VIT), picture(0)
    assert processor(image, size=5)["pixel_values"].shape == (1, 3, 5, 5)
    assert processor.updated(size={"height": 6, "width": 7})(image)["pixel_values"].shape == (1, 3, 6, 7)
    assert processor(image)["pixel_values"].shape == (1, 3, 8, 8)
    assert processor(image, do_normalize=False)["pixel_values"].min() >= 0


def test_files_are_written_as_they_were_read(tmp_path):
    text = json.dumps({"size": 8, "feature_extractor_type": "ViTFeatureExtractor", "of_whom": "nobody knows"})
    (tmp_path / "preprocessor_config.json").write_text(text)
    processor = load_image_processor(tmp_path)
    processor.save(tmp_path / "again")
    assert [path.read_text() for path in (tmp_path / "again").iterdir()] == [text]
    processor.updated(size=9).save(tmp_path / "larger")
    larger = json.loads((tmp_path / "larger" / "preprocessor_config.json").read_text())
    assert larger == {"size": 9, "image_processor_type": "ViTImageProcessor", "of_whom": "nobody knows"}


def test_the_model_tells_the_processor_where_nothing_else_does(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text('{"size": 28}')
    with pytest.raises(ValueError, match=r"preprocessor_config.json: image_processor_type must be one of ViTImage"):
        load_image_processor(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": ["convnext"]}')
    with pytest.raises(ValueError, match="got None"):
        load_image_processor(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "convnext"}')
    assert load_image_processor(tmp_path)(picture(0))["pixel_values"].shape == (1, 3, 28, 28)
    assert load_image_processor(tmp_path.parent) is None


def test_a_file_is_turned_upright_and_made_rgb(tmp_path):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    image = picture(0)
    image.save(tmp_path / "turned.png", exif=exif)
    upright = image.transpose(PIL.Image.Transpose.ROTATE_270)
    expected = ImageProcessor.of(VIT)(upright)["pixel_values"]
    for source in (tmp_path / "turned.png", str(tmp_path / "turned.png"), (tmp_path / "turned.png").read_bytes()):
        np.testing.assert_array_equal(ImageProcessor.of(VIT)(source)["pixel_values"], expected)
    picture(1).save(tmp_path / "grey.png")
    assert ImageProcessor.of(VIT)(tmp_path / "grey.png")["pixel_values"].shape == (1, 3, 8, 8)


@pytest.mark.rotates
def test_it_comes_and_goes_with_the_weights(tmp_path, caplog):
    given = shutil.copytree(CHECKPOINT, tmp_path / "given")
    for name, options in (("good", VIT), ("bad", VIT | {"resample": 9})):
        (given / "preprocessor_config.json").write_text(text := json.dumps(options))
        loaded = hub.load(given)
        hub.save(loaded, tmp_path / name)
        save_orbax(loaded, tmp_path / f"{name}-orbax")
        for folder, read in ((tmp_path / name, hub.load), (tmp_path / f"{name}-orbax", load_orbax)):
            assert (folder / "preprocessor_config.json").read_text() == text
            again = read(folder).processor
            if name == "good":
                assert again(picture(0))["pixel_values"].shape == (1, 3, 8, 8)
            else:
                with pytest.raises(
                    ValueError, match=r"image processor cannot be read: .*resample must be one of 0 to 5"
                ):
                    again(picture(0))
    assert "these weights are without their image processor" in caplog.text
    assert hub.load(CHECKPOINT).processor is None
    made = hub.wrap(loaded.model, loaded.config["architectures"][0], processor=ImageProcessor.of(VIT))
    assert made.processor.config["size"] == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_processor_type": "SamImageProcessor"}, "must be one of ViTImageProcessor.*got 'SamImageProcessor'"),
        ({"image_processor_type": "ViT"}, "got 'ViT'"),
        ({"image_processor_type": 3}, "got 3"),
        ({"size": 0}, "size must be a whole number from 1 to 4096.*got 0"),
        ({"size": 1e3}, "got 1000.0"),
        ({"size": {"height": 3}}, "size must be"),
        ({"size": {"longest_edge": 3}}, "height and width; shortest_edge; longest_edge and shortest_edge; max_height"),
        ({"size": None}, "got None"),
        ({"size": [1, 2, 3]}, r"got \[1, 2, 3\]"),
        ({"size": {"height": 2**40, "width": 1}}, "got {'height': 1099511627776"),
        ({"resample": 6}, "resample must be one of 0 to 5, got 6"),
        ({"resample": True}, "got True"),
        ({"do_resize": 1}, "do_resize must be true or false, got 1"),
        ({"do_pan_and_scan": True}, "do_pan_and_scan is a step that is not known here"),
        ({"do_center_crop": True}, "crop_size must be.*got None"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 3}}, "crop_size must give height and width"),
        ({"rescale_factor": "1/255"}, "rescale_factor must be a number, got '1/255'"),
        ({"image_mean": [0.5, None, 0.5]}, "image_mean must be numbers, got"),
        ({"image_std": [1, 0, 1]}, r"image_std must be numbers above 0, got \[1, 0, 1\]"),
        ({"image_std": []}, r"above 0, got \[\]"),
        (
            {"image_processor_type": "ConvNextImageProcessor", "crop_pct": 1e-320},
            "crop_pct must be from 0.01 to 1, got 1e-320",
        ),
        ({"image_processor_type": "ConvNextImageProcessor", "size": [3, 3]}, "size must give the shortest_edge"),
        (
            {"image_processor_type": "ImageGPTImageProcessor"},
            "clusters must be a list of colours of three numbers, got None",
        ),
        ({"image_processor_type": "ImageGPTImageProcessor", "clusters": [[1, 2]]}, "clusters must be a list"),
        ({"image_processor_type": "ImageGPTImageProcessor", "clusters": []}, r"three numbers, got \[\]"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_in_one_sentence(options, message):
    with pytest.raises(ValueError, match=message) as error:
        ImageProcessor.of(VIT | options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "at least one image"),
        (3, "must be Pillow's, a file, bytes or an array, got int"),
        (np.zeros((5, 6, 2), np.uint8), r"1, 3 or 4 channels, first or last, got shape \(5, 6, 2\)"),
        (np.zeros(4, np.uint8), r"got uint8\(4,\)"),
        (np.zeros((0, 4, 3), np.uint8), "got uint8"),
        (np.zeros((4, 4, 3), complex), "got complex128"),
        (np.full((4, 4, 3), np.nan), "finite values"),
        (np.full((4, 4, 3), 300), "from 0 to 255, or from 0 to 1, got 300 to 300"),
        (np.full((4, 4, 3), -0.5), "got -0.5 to -0.5"),
        (PIL.Image.new("L", (3, 3)), r"must have 3 channels, as image_mean has, got 1; image.convert\('RGB'\) has 3"),
        (PIL.Image.new("RGBA", (3, 3)), "must have 3 channels, as image_mean has, got 4"),
        (PIL.Image.new("RGB", (0, 3)), "must have pixels, got 0 × 3"),
        (b"", "the bytes must be an image, it is empty"),
        (b"GIF89a", "the bytes must be an image"),
    ],
)
def test_what_is_no_picture_is_refused_in_one_sentence(images, message):
    with pytest.raises(ValueError, match=message) as error:
        ImageProcessor.of(VIT)(images)
    assert "\n" not in str(error.value)


def test_what_a_call_cannot_do_is_said():
    processor = ImageProcessor.of(VIT)
    with pytest.raises(FileNotFoundError, match=r"no_such\.png"):
        processor("no_such.png")
    with pytest.raises(ValueError, match=r"options of image processors are clusters, .*; got data_format"):
        processor(picture(0), data_format="channels_last")
    with pytest.raises(ValueError, match="arrays are NumPy's"):
        processor(picture(0), return_tensors="pt")
    thin = ImageProcessor.of(VIT | {"size": {"shortest_edge": 4000}})
    with pytest.raises(ValueError, match="1 to 16,777,216 pixels, got 900 × 1, which becomes 3600000 × 4000"):
        thin(PIL.Image.new("RGB", (900, 1)))
    with pytest.raises(ValueError, match=r"of one shape here, got \(3, 2, 5\) and \(3, 6, 5\)"):
        processor([np.zeros((2, 5, 3)), np.zeros((6, 5, 3))], do_resize=False)
    with pytest.raises(ValueError, match="images must fit pad_size, 3 × 3, got 8 × 8"):
        processor(picture(0), do_pad=True, pad_size=3)


def test_objects_above_the_threshold_are_given_with_corners_in_pixels():
    logits = np.log(np.array([[[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.05, 0.9, 0.05]]], np.float32))
    boxes = np.array([[[0.5, 0.5, 0.2, 0.4], [0.1, 0.1, 0.1, 0.1], [0.25, 0.75, 0.5, 0.5]]], np.float32)
    (found,) = post_process_object_detection(logits, boxes, [(100, 200)])
    assert found["labels"].tolist() == [0, 1]
    np.testing.assert_allclose(found["scores"], [0.7, 0.9], rtol=1e-6)
    np.testing.assert_allclose(found["boxes"], [[80, 30, 120, 70], [0, 50, 100, 100]], rtol=1e-6)
    assert len(post_process_object_detection(logits, boxes, threshold=0.2)[0]["scores"]) == 3
    with pytest.raises(ValueError, match="one size for each image, got 2 for 1"):
        post_process_object_detection(logits, boxes, [(1, 1), (2, 2)])
