"""Images of few colours: the nearest is found, k-means finds what is there, sequences are those pixels."""

import numpy as np
import pytest

from flax_transformer.data.image.palette import Palette, PaletteRows, find_palette

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("channels", [1, 3])
def test_every_pixel_is_the_number_of_the_nearest_colour(channels, monkeypatch):
    monkeypatch.setattr("flax_transformer.data.image.palette.PIECE", 70)
    palette = Palette(colours=tuple(map(tuple, RNG.uniform(-1, 1, (7, channels)).tolist())))
    images = RNG.integers(0, 256, (3, 4, 5, channels), np.uint8)
    points = images.reshape(-1, 1, channels) / 127.5 - 1
    nearest = np.square(points - np.array(palette.colours)).sum(-1).argmin(-1)
    tokens = palette.tokens(images)
    np.testing.assert_array_equal(tokens, nearest.reshape(3, 20))
    painted = palette.pixels(tokens, 4)
    assert painted.shape == images.shape
    np.testing.assert_array_equal(palette.tokens(painted), tokens)


def test_as_many_colours_as_there_are_are_found_as_they_are():
    pixels = np.array([[200, 0, 0], [0, 0, 0], [200, 0, 0], [0, 255, 255]], np.uint8)
    palette = find_palette(pixels, 5)
    assert len(palette) == 3
    np.testing.assert_array_equal(palette.pixels(palette.tokens(pixels[None, None]), 1)[0, 0], pixels)
    sums = np.sum(palette.colours, axis=1)
    assert np.all(np.diff(sums) >= 0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_heaps_of_pixels_are_told_apart_and_met_in_their_middle(seed):
    heaps = np.array([[20, 20, 20], [200, 40, 30], [60, 210, 90], [240, 240, 250]])
    pixels = np.clip(heaps.repeat(200, 0) + RNG.integers(-9, 10, (800, 3)), 0, 255).astype(np.uint8)
    palette = find_palette(pixels, 4, seed=seed)
    means = pixels.reshape(4, 200, 3).mean(1)
    np.testing.assert_allclose((np.array(palette.colours) + 1) * 127.5, means[np.argsort(means.sum(1))], atol=0.01)
    assert find_palette(pixels, 4, seed=seed) == palette


def test_sequences_are_told_what_comes_before_each_pixel():
    palette = Palette(colours=((-1.0,), (0.0,), (1.0,)))
    images = np.array([[[0, 255], [130, 0]], [[0, 0], [0, 0]]], np.uint8)[..., None]
    batch = {"inputs": {"images": images}, "labels": np.array([4, 0]), "weights": np.array([1, 0], np.float32)}
    told = PaletteRows(palette=palette)(batch)
    assert told["labels"].tolist() == [[0, 2, 1, 0], [0, 0, 0, 0]]
    assert told["inputs"]["tokens"].tolist() == [[3, 0, 2, 1], [3, 0, 0, 0]]
    assert told["weights"].tolist() == [[1] * 4, [0] * 4]


@pytest.mark.parametrize(("call", "message"), [
    (lambda: Palette(colours=()), "a palette must have colours"),
    (lambda: Palette(colours=((0.0,), (0.0, 1.0))), "all of as many channels"),
    (lambda: Palette(colours=((0.0,), (2.0,))), "colours must be from -1 to 1"),
    (lambda: find_palette(np.zeros((3, 1), np.uint8), 1), "colours must be at least 2, got 1"),
    (lambda: Palette(colours=((0.0,),)).tokens(np.zeros((1, 2, 2, 3), np.uint8)), "must have C=1, .* got 3"),
])  # fmt: skip
def test_bad_input_is_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()
