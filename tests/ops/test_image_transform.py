"""Changes of images on the device: beside Pillow, matplotlib and SciPy, and by rows that do not know each other."""

import colorsys

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
from scipy.ndimage import gaussian_filter1d

from flax_transformer.objective.views import BYOL_CHANGES, ViewChange, Views
from flax_transformer.ops import image_transform

IMAGES = np.random.default_rng(0).random((3, 12, 10, 3)).astype(np.float32)


def test_crops_are_those_of_pillow():
    """Inside; at the edges Pillow does not look at what is beside the box."""
    box = (2, 3, 8, 11)  # left, top, right, bottom
    found = image_transform.crop_resize(jnp.array(IMAGES[:1]), jnp.array([[3 / 12, 2 / 10, 8 / 12, 6 / 10]]), (4, 3))[0]
    for channel in range(3):
        image = PIL.Image.fromarray(IMAGES[0, ..., channel])
        expected = np.asarray(image.resize((3, 4), PIL.Image.Resampling.BILINEAR, box=box))
        np.testing.assert_allclose(found[1:-1, 1:-1, channel], expected[1:-1, 1:-1], atol=1e-5)


def test_the_whole_image_in_its_size_is_itself():
    whole = jnp.tile(jnp.array([[0.0, 0.0, 1.0, 1.0]]), (3, 1))
    np.testing.assert_allclose(image_transform.crop_resize(jnp.array(IMAGES), whole, (12, 10)), IMAGES, atol=1e-6)


def test_hues_turn_as_in_colorsys():
    found = np.asarray(image_transform.turn_hue(jnp.array(IMAGES), jnp.array([0.0, 0.3, -0.45])))
    for number, turn in enumerate((0.0, 0.3, -0.45)):
        for pixel, got in zip(IMAGES[number].reshape(-1, 3)[:20], found[number].reshape(-1, 3), strict=False):
            hue, saturation, value = colorsys.rgb_to_hsv(*map(float, pixel))
            np.testing.assert_allclose(got, colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value), atol=1e-5)
    grey = jnp.full((1, 2, 2, 3), 0.4)
    np.testing.assert_allclose(image_transform.turn_hue(grey, jnp.array([0.3])), grey, atol=1e-6)


def test_a_blur_is_a_gaussian():
    sigma, width = 1.3, 5
    found = image_transform.blur(jnp.array(IMAGES), jnp.full(3, sigma), width)
    expected = IMAGES.astype(np.float64)
    for axis in (1, 2):
        expected = gaussian_filter1d(expected, sigma, axis=axis, radius=width // 2, mode="mirror")
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match="a blur must have an odd width"):
        image_transform.blur(jnp.array(IMAGES), jnp.full(3, sigma), 4)


def test_colours_change_as_in_pillow():
    """`PIL.ImageEnhance` in bytes, so within a step of rounding; contrast's mean is rounded there."""
    from PIL import ImageEnhance

    pixels = (IMAGES[0] * 255).round().astype(np.uint8)
    image, values = PIL.Image.fromarray(pixels), jnp.array(pixels[None] / 255.0, jnp.float32)
    kinds = (
        (image_transform.brighten, ImageEnhance.Brightness), (image_transform.contrast, ImageEnhance.Contrast),
        (image_transform.saturate, ImageEnhance.Color),
    )  # fmt: skip
    for change, kind in kinds:
        for factor in (0.6, 1.4):
            found = np.asarray(change(values, jnp.array([factor])))[0] * 255
            np.testing.assert_allclose(found, np.asarray(kind(image).enhance(factor)), atol=1.6)


def test_solarise_grey_and_flip():
    np.testing.assert_allclose(
        image_transform.solarise(jnp.array([0.2, 0.7]).reshape(1, 1, 2, 1)).ravel(), [0.2, 0.3], atol=1e-6
    )
    found = image_transform.flip(jnp.array(IMAGES), jnp.array([True, False, True]))
    np.testing.assert_array_equal(found, np.stack([IMAGES[0, :, ::-1], IMAGES[1], IMAGES[2, :, ::-1]]))
    luma = IMAGES @ np.array([0.299, 0.587, 0.114], np.float32)
    np.testing.assert_allclose(image_transform.grey(jnp.array(IMAGES))[..., 1], luma, atol=1e-6)


VIEWS = Views(size=8, changes=BYOL_CHANGES, local=3, local_size=4, mean=(0.5,) * 3, std=(0.25,) * 3)


@pytest.mark.rotates
def test_views_have_their_sizes_and_are_drawn_anew_by_every_key():
    images = jnp.array((IMAGES[:, :10] - 0.5) / 0.25)
    make = jax.jit(VIEWS)
    large, small = make(images, jax.random.key(0))
    assert large.shape == (3, 2, 8, 8, 3)
    assert small.shape == (3, 3, 4, 4, 3)
    assert np.isfinite(large).all()
    assert large.min() >= -2 - 1e-5
    assert large.max() <= 2 + 1e-5
    again, other = make(images, jax.random.key(0)), make(images, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, again, (large, small))
    assert not np.allclose(other[0], large)
    assert not np.allclose(large[:, 0], large[:, 1])


@pytest.mark.rotates
def test_a_row_of_a_batch_has_the_views_it_would_have_in_a_part_of_it():
    """What a part of a batch draws is what the whole batch draws for its rows."""
    from flax_transformer.ops.row_random import rows_of

    images, rows = jnp.array((IMAGES[:, :10] - 0.5) / 0.25), jnp.array([2, 0])
    whole = jax.jit(VIEWS)(images, jax.random.key(3))
    with rows_of(rows, 3):
        part = jax.jit(lambda images, key: VIEWS(images, key))(images[rows], jax.random.key(3))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[rows], atol=1e-5), part, whole)


def test_without_a_key_a_view_is_the_image():
    images = jnp.array(IMAGES[:, :8, :8])
    large, small = VIEWS(images, None)
    np.testing.assert_allclose(large, np.stack([images, images], 1), atol=1e-5)
    assert small.shape == (3, 3, 4, 4, 3)


def test_probabilities_are_those_that_are_asked():
    """Of 400 rows half are mirrored, and all or none grey."""
    images = jnp.broadcast_to(jnp.linspace(0, 1, 4)[None, None, :, None], (400, 4, 4, 3))
    change = ViewChange(flip=0.5, jitter=(0.0, 0.0, 0.0, 0.0), grey=0.0, blur=0.0)
    found = np.asarray(change(images, jax.random.key(0)))
    mirrored = (found[:, 0, 0, 0] > 0.5).mean()
    assert 0.4 < mirrored < 0.6
