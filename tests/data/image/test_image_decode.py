"""Decoding: one rule for every kind of image, and what is refused."""

import io
import tracemalloc

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from flax_transformer.data.image import decode_image, image_size
from flax_transformer.data.image.decode import MAX_PIXELS, SUFFIXES
from tests.data.image.image_files import pixels, png_bomb, write_image

pytestmark = pytest.mark.proves("pictures", "every mode and orientation made RGB by rule, bombs refused undecoded")


def one(mode, colour):
    return PIL.Image.new(mode, (3, 2), colour)


def saved(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def palette(**options):
    image = one("P", 1)
    image.putpalette([9, 9, 9, 10, 20, 30])
    return saved(image, **options)


def grey16(value):
    return saved(PIL.Image.fromarray(np.full((2, 3), value, np.uint16)))


KINDS = {
    "rgb": (saved(one("RGB", (10, 20, 30))), (10, 20, 30)),
    "grey": (saved(one("L", 77)), (77, 77, 77)),
    "black and white": (saved(one("1", 1)), (255, 255, 255)),
    "what is transparent lies on white": (saved(one("RGBA", (10, 20, 30, 0))), (255, 255, 255)),
    "half transparent": (saved(one("RGBA", (10, 20, 30, 128))), (132, 137, 142)),
    "opaque": (saved(one("RGBA", (10, 20, 30, 255))), (10, 20, 30)),
    "grey with alpha": (saved(one("LA", (40, 3))), (252, 252, 252)),
    "a transparent colour": (saved(one("RGB", (10, 20, 30)), transparency=(10, 20, 30)), (255, 255, 255)),
    "palette": (palette(), (10, 20, 30)),
    "palette with a transparent colour": (palette(transparency=1), (255, 255, 255)),
    "palette with alphas": (palette(transparency=b"\x00\x10"), (240, 240, 241)),
    "CMYK": (saved(one("CMYK", (255, 0, 0, 0)), "TIFF"), (0, 255, 255)),
    "16 bits, all": (grey16(65_535), (255, 255, 255)),
    "16 bits, half": (grey16(32_768), (128, 128, 128)),
    "16 bits, none": (grey16(100), (0, 0, 0)),
    "16 bits as ppm": (b"P5 3 2 65535\n" + b"\x80\x00" * 6, (128, 128, 128)),
    "an animation's first": (saved(one("L", 9), "GIF", save_all=True, append_images=[one("L", 99)]), (9, 9, 9)),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_picture_becomes_rgb(name):
    content, colour = KINDS[name]
    found = decode_image(content)
    assert (found.mode, found.size) == ("RGB", (3, 2))
    assert np.asarray(found).reshape(-1, 3).tolist() == [list(colour)] * 6


@pytest.mark.parametrize("name", KINDS)
def test_grey_is_that_of_the_rgb(name):
    content, _ = KINDS[name]
    expected = decode_image(content).convert("L")
    np.testing.assert_array_equal(np.asarray(decode_image(content, channels=1)), np.asarray(expected))


@pytest.mark.parametrize("suffix", [".PNG", ".tif", ".webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(tmp_path, orientation, suffix):
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    with PIL.Image.open(write_image(tmp_path / "truth.png", exif=exif)) as image:
        expected = PIL.ImageOps.exif_transpose(image)
    path = write_image(tmp_path / f"x{suffix}", exif=exif, **({"lossless": True} if suffix == ".webp" else {}))
    found = decode_image(path)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
    assert image_size(path) == found.size


def test_a_picture_that_is_annotated_lying_is_left_so(tmp_path):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    path = write_image(tmp_path / "x.png", exif=exif)
    assert decode_image(path).size == decode_image(path, size=(6, 8)).size == (6, 8)
    np.testing.assert_array_equal(np.asarray(decode_image(path, size=(8, 6))), pixels())
    with pytest.raises(ValueError, match=r"x\.png must be 7 × 7 pixels, as its annotation says, got 6 × 8"):
        decode_image(path, size=(7, 7))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_does_not_hide_a_picture():
    content = saved(one("RGB", 5), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert decode_image(content).size == (3, 2)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jpg", b"", "must be an image, it is empty"),
        ("page.jpg", b"<html>not found</html>", r"must be an image \(JPEG, .*it is none or damaged"),
        ("cut.png", saved(PIL.Image.fromarray(pixels(0, 40, 40)))[:-2000], "damaged or truncated"),
        ("cut.jpg", saved(PIL.Image.fromarray(pixels(0, 40, 40)), "JPEG")[:-900], "damaged or truncated"),
        ("head.png", saved(one("RGB", 0))[:20], "damaged"),
        ("x.jpg", saved(one("RGB", 0)), "must be a JPEG image, as its name says, it is PNG"),
        ("x.JPEG", saved(one("RGB", 0), "GIF"), "must be a JPEG image, as its name says, it is GIF"),
        ("bomb.png", png_bomb(), "must have at most 89,478,485 pixels"),
        ("larger.png", png_bomb(10_000, 9_000), "must have at most 89,478,485 pixels"),
        ("float.tif", saved(one("F", 0.5), "TIFF"), "must have whole numbers as values"),
        ("wide.tif", saved(one("I", 70_000), "TIFF"), "must have values of at most 16 bits, got 70000 to 70000"),
        ("x.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is none or damaged"),
    ],
)  # fmt: skip
def test_what_is_no_picture_is_refused_by_its_name(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        decode_image(tmp_path / name)
    assert str(refused.value).startswith(str(tmp_path / name))
    assert "\n" not in str(refused.value)


def test_a_bomb_is_refused_before_it_takes_memory():
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="pixels"):
            decode_image(png_bomb())
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        decode_image(tmp_path / "none.png")


@pytest.mark.parametrize("kind", SUFFIXES)
def test_every_format_is_read_by_each_of_its_suffixes(tmp_path, kind):
    for suffix in SUFFIXES[kind]:
        path = tmp_path / f"ein Bild{suffix.upper()}"
        path.write_bytes(saved(one("RGB", (10, 20, 30)), kind))
        assert decode_image(path).size == (3, 2)
    assert MAX_PIXELS > 8_000 * 10_000
