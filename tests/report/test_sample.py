import base64
import io
import json

import numpy as np
import PIL.Image
import pytest

from flax_transformer.report.sample import read_confusion, read_media, save_image, write_confusion


def _pixels(url: str) -> np.ndarray:
    return np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,")))))


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3)])
def test_a_picture_comes_back_pixel_by_pixel(tmp_path, shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    place = save_image(tmp_path, "7", pixels)
    assert place == "samples/7.png"
    np.testing.assert_array_equal(_pixels(read_media(tmp_path, place)), pixels.reshape(5, 7, -1).squeeze())


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_large_picture_keeps_its_shape(tmp_path, mode):
    given = PIL.Image.new(mode, (2000, 1000))
    place = save_image(tmp_path, "large", given)
    assert _pixels(read_media(tmp_path, place)).shape == (256, 512, 3)
    assert given.size == (2000, 1000)


@pytest.mark.parametrize("name", ["", "../7", "a/b", "a b", "ä"])
def test_a_picture_stays_in_its_folder(tmp_path, name):
    with pytest.raises(ValueError, match="the name of an image must be"):
        save_image(tmp_path, name, np.zeros((2, 2), np.uint8))


def test_only_pngs_of_the_folder_itself_are_read(tmp_path):
    (tmp_path / "samples").mkdir()
    (tmp_path / "secret.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "samples/link.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "samples/text.png").write_text("<script>")
    places = [
        "samples/link.png",
        "samples/text.png",
        "samples/none.png",
        "secret.png",
        "samples/../secret.png",
        None,
        7,
    ]
    assert [read_media(tmp_path, place) for place in places] == [None] * len(places)


def test_confusions_are_counted_by_truth_then_by_what_was_told(tmp_path):
    write_confusion(tmp_path, ("cat", "dog"), [0, 0, 1, 0], [0, 1, 1, 1])
    assert read_confusion(tmp_path) == {"classes": ["cat", "dog"], "counts": [[1, 2], [0, 1]]}


@pytest.mark.parametrize(
    "value", [3, [], {"classes": ["a"], "counts": [[1, 2]]}, {"classes": ["a"], "counts": [["<"]]}]
)
def test_confusions_that_do_not_fit_are_none(tmp_path, value):
    (tmp_path / "confusion.json").write_text(json.dumps(value))
    assert read_confusion(tmp_path) is None
