"""What images become, and the sizes they are given, beside `transformers`."""

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from flax_transformer.data.image import Resize, decode_image

pytestmark = pytest.mark.parity
transformers = pytest.importorskip("transformers")


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_decoded_pictures_are_those_of_transformers(tmp_path, mode, orientation):
    from transformers.image_transforms import convert_to_rgb

    draw = np.random.default_rng(orientation)
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    image = PIL.Image.fromarray(draw.integers(0, 256, (11, 17, 4), np.uint8), "RGBA")
    path = tmp_path / f"x.{'jpg' if mode == 'CMYK' else 'png'}"
    (image.convert("RGB") if mode == "CMYK" else image).convert(mode).save(path, exif=exif)
    upright = PIL.ImageOps.exif_transpose(PIL.Image.open(path))
    np.testing.assert_array_equal(np.asarray(decode_image(path)), convert_to_rgb(upright, return_numpy=True))


def test_the_sizes_of_resized_pictures_are_those_of_transformers():
    from transformers.image_transforms import get_resize_output_image_size, get_size_with_aspect_ratio

    draw = np.random.default_rng(0)
    for height, width, size in draw.integers(30, 900, (500, 3)).tolist():
        image = np.zeros((height, width, 1), np.uint8)
        theirs = get_resize_output_image_size(image, size, default_to_square=False, input_data_format="channels_last")
        assert Resize(size=size).shape(width, height) == theirs
        both = get_size_with_aspect_ratio((height, width), size, 2 * size)
        if max(both) <= 2 * size:  # an image a pixel too long, whose shorter side would stay, they leave as it is
            assert Resize(size=size, longest=2 * size).shape(width, height) == both
