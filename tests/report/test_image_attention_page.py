"""Rollout, merged patches, colours of weights in figures, and the page on which a query is chosen."""

import base64
import json
import re

import numpy as np
import pytest

from flax_transformer.report import ImageAttention, ImageMaps, Report, Tiling, image_attention_figure, render
from flax_transformer.report.image_attention import (
    COLOURS,
    OPACITY,
    _packed_maps,
    extent,
    flat_over,
    greyed,
    mean_overlay,
    overlay,
    packed,
)

pytestmark = pytest.mark.proves("report", "attention over images, rollout")

random = np.random.default_rng(0)
BARE = Tiling(3, 4, 8, 6)
TILES = BARE._replace(tokens=("class_token",))


def made(layers=2, heads=3, queries=TILES, keys=TILES, name="self"):
    weights = random.random((layers, heads, queries.count, keys.count), np.float32) ** 3
    return ImageMaps(name, weights / weights.sum(-1, keepdims=True), queries, keys)


def attention(*maps, size=(26, 25)):
    return ImageAttention("a dog", random.integers(0, 256, (*size, 3), np.uint8), maps, output="dog 0.93")


def test_rollout_is_the_product_of_halved_means():
    maps = made()
    first, second = (0.5 * (layer.mean(0) + np.eye(13)) for layer in maps.weights)
    np.testing.assert_allclose(maps.rollout(), [first, second @ first], atol=1e-6)
    np.testing.assert_allclose(maps.rollout().sum(-1), 1, atol=1e-6)
    assert made(keys=Tiling(1, 2, 16, 12, ("class_token",))).rollout() is None


def test_merged_patches_look_as_their_mean_and_are_looked_at_as_their_sum():
    maps = made()
    merged = maps.merged(2)
    assert merged.queries == merged.keys == Tiling(2, 2, 16, 12, ("class_token",))
    np.testing.assert_allclose(merged.weights.sum(-1), 1, atol=1e-6)
    block = [1 + 4 * row + column for row in (0, 1) for column in (2, 3)]
    lower = [1 + 4 * 2 + column for column in (0, 1)]
    np.testing.assert_allclose(
        merged.weights[..., 2, 3], maps.weights[..., block, :][..., lower].sum(-1).mean(-1), rtol=1e-5
    )
    np.testing.assert_allclose(merged.weights[..., 0, 2], maps.weights[..., 0, block].sum(-1), rtol=1e-5)
    np.testing.assert_allclose(merged.weights[..., 3, 0], maps.weights[..., lower, 0].mean(-1), rtol=1e-5)


def test_weights_are_kept_to_a_hundredth_of_the_range_of_their_row():
    """Also those of patches beside a token that takes nearly all."""
    maps = made()
    maps.weights[..., 0] += 100
    maps = ImageMaps("self", maps.weights / maps.weights.sum(-1, keepdims=True), TILES, TILES)
    (kept,) = packed(attention(maps), 10**6)[0]["maps"]
    every = np.concatenate([maps.weights, maps.rollout()[:, None]], 1)
    ranges = np.frombuffer(base64.b64decode(kept["ranges"]), "<f4").reshape(*every.shape[:3], 2, 2)
    codes = np.frombuffer(base64.b64decode(kept["weights"]), np.uint8).reshape(every.shape) / 255
    for at, part in enumerate((slice(0, 1), slice(1, None))):
        low, high = (ranges[..., at, end, None] for end in (0, 1))
        assert (np.abs(low + (high - low) * codes[..., part] - every[..., part]) <= 0.01 * (high - low) + 1e-7).all()


@pytest.mark.parametrize("side", [1, 2])
def test_the_uniform_weight_is_of_what_a_query_attends_to(side):
    """Also where it is causal, or merged patches are several."""
    causal = np.tril(np.ones((1, 1, 12, 12), np.float32))
    maps = ImageMaps("self", causal / causal.sum(-1, keepdims=True), BARE, BARE)
    np.testing.assert_allclose(maps.uniform(), maps.weights[:, 0])
    uniform = np.frombuffer(base64.b64decode(_packed_maps(maps, side)["uniform"]), "<f4").reshape(2, -1)[0]
    expected = maps.merged(side).weights[0, 0].max(-1)
    np.testing.assert_allclose(uniform, expected, rtol=1e-6)


PLAIN = {
    "dark": np.full((24, 24, 3), 3, np.uint8),
    "white": np.full((24, 24, 3), 255, np.uint8),
    "noise": random.integers(0, 256, (24, 24, 3), np.uint8),
    "small": np.full((3, 4, 3), 9, np.uint8),
}


@pytest.mark.parametrize("name", PLAIN)
def test_colours_tell_weights_apart_on_any_image(name):
    """A dark image is no reason for two weights to look alike."""
    pixels = PLAIN[name]
    size = pixels.shape[0] // 3
    keys = Tiling(3, 4, size, pixels.shape[1] // 4)
    weights = np.linspace(0.01, 0.3, 12)
    drawn = overlay(pixels, weights, keys, 0.01, 0.3)
    patches = drawn.reshape(3, size, 4, -1, 3).mean((1, 3)).reshape(12, 3)
    apart = np.abs(patches[1:] - patches[:-1]).sum(-1)
    assert (apart > 0.03).all()
    grey = greyed(pixels).reshape(3, size, 4, -1).mean((1, 3)).ravel()
    expected = [np.interp(np.linspace(0, 1, 12), np.linspace(0, 1, 17), channel) / 255 for channel in COLOURS.T]
    np.testing.assert_allclose(patches, (1 - OPACITY) * grey[:, None] + OPACITY * np.stack(expected, -1), atol=1e-6)


def test_what_no_patch_covers_stays_grey():
    pixels = random.integers(0, 256, (26, 25, 3), np.uint8)
    drawn = overlay(pixels, np.arange(12.0), BARE, 0, 11)
    np.testing.assert_allclose(drawn[24:], np.repeat(greyed(pixels)[24:, :, None], 3, 2))
    assert np.ptp(drawn[:24, :24], axis=-1).min() > 0.01


def test_flat_attention_looks_flat_and_says_so():
    weights = np.full((1, 2, 13, 13), 1 / 13, np.float32)
    weights[0, 0, 0, 3] *= 1.03
    weights[0, 1, 0, 3] *= 1.5
    figure = image_attention_figure(ImageAttention("x", PLAIN["noise"], (ImageMaps("self", weights, TILES, TILES),)))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[1] == "head 1 (flat)\nmax 0.0792 · uniform 0.0769"
    assert titles[2] == "head 2\nmax 0.115 · uniform 0.0769"
    grey = np.repeat(greyed(PLAIN["noise"])[..., None], 3, 2)
    flat, other = (axes.images[0].get_array() - (1 - OPACITY) * grey for axes in figure.axes[1:3])
    assert np.ptp(flat.reshape(-1, 3), axis=0).max() < 1e-6
    assert np.ptp(other.reshape(-1, 3), axis=0).max() > 0.2
    assert flat_over(weights[0, 0, 0])
    assert not flat_over(weights[0, 1, 0])
    assert mean_overlay(ImageAttention("x", PLAIN["dark"], (made(),)))[1].startswith("max ")


def test_one_scale_is_of_all_panels_and_the_title_says_which():
    maps = made(layers=1)
    titles = {}
    for scale in ("min-max", "absolute"):
        dark = ImageAttention("x", PLAIN["dark"], (maps,))
        figure = image_attention_figure(dark, scale=scale)
        titles[scale] = figure.get_suptitle()
        brightest = [axes.images[0].get_array().max() for axes in figure.axes[1:4]]
        assert (len(set(np.round(brightest, 3))) == 1) == (scale == "min-max")
    top = maps.weights[0, :, 0, 1:].max()
    assert "each panel from its smallest to its largest weight" in titles["min-max"]
    assert f"all panels from 0 to {top:.3g}" in titles["absolute"]


def test_patches_are_merged_until_they_fit_and_it_says_so(monkeypatch):
    monkeypatch.setattr("flax_transformer.report.page.SEEN", 6_000)
    large, small = made(queries=Tiling(9, 9, 2, 2), keys=Tiling(9, 9, 2, 2)), made(queries=BARE, keys=BARE)
    page = render(Report(title="x", images=[attention(large, small)]))
    maps = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))["seen"][0]["maps"]
    assert [(each["keys"]["rows"], each["keys"]["columns"]) for each in maps] == [(5, 5), (3, 4)]
    assert "of up to 2 × 2 patches merged" in page


@pytest.mark.parametrize(("options", "says"), [
    ({"layer": 3}, "layer must be between 1 and 2, or count from the end, got 3"),
    ({"layer": 0}, "layer must be between 1 and 2, or count from the end, got 0"),
    ({"query": 13}, "query must be between 0 and 12, got 13"),
])  # fmt: skip
def test_what_there_is_not_cannot_be_drawn(options, says):
    with pytest.raises(ValueError, match=says):
        image_attention_figure(attention(made()), **options)


def test_a_figure_has_every_head_and_says_whose_it_is():
    figure = image_attention_figure(attention(made()), layer=1, query=6)
    titles = [axes.get_title() for axes in figure.axes]
    names = ["image", "head 1", "head 2", "head 3", "mean of heads", "rollout"]
    assert [title.partition("\n")[0] for title in titles[:6]] == names
    assert all(re.search(r"\nmax [\d.e-]+ · uniform 0.0769$", title) for title in titles[1:6])
    assert figure.get_suptitle().startswith("attention of the patch in row 2, column 2 to patches, layer 1 of 2\n")
    titles = {
        "attention of the class token to": made(),
        "attention of [CLS] to": made(queries=TILES._replace(tokens=("[CLS]",))),
        "attention of all patches (mean) to": made(queries=BARE, keys=BARE),
        "decoder: attention of $a$ to": made(queries=Tiling(0, 0, 1, 1, ("$a$",)), keys=BARE, name="decoder"),
    }
    for title, maps in titles.items():
        assert image_attention_figure(attention(maps)).get_suptitle().startswith(title)


def test_weights_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"must be \[layers, heads, 13, 13\], got \(1, 1, 12, 13\)"):
        ImageMaps("self", np.zeros((1, 1, 12, 13), np.float32), TILES, TILES)


CANVAS = "document.querySelector('canvas.seen')"


def colour(page, x, y):
    """Read the colour of the canvas at a position given in pixels of the image, 25 wide and 26 high."""
    script = f"""(() => {{
      const c = {CANVAS}, copy = document.createElement("canvas");
      Object.assign(copy, {{ width: c.width, height: c.height }});
      copy.getContext("2d").drawImage(c, 0, 0);
      const at = [c.width / 25 * {x + 0.5}, c.height / 26 * {y + 0.5}, 1, 1];
      return [...copy.getContext("2d").getImageData(...at).data].slice(0, 3);
    }})()"""
    return page.run(script)


def expected_colour(patches, index, low=None):
    low = patches.min() if low is None else low
    share = (patches[index] - low) / (patches.max() - low)
    return [np.interp(share, np.linspace(0, 1, 17), channel) for channel in COLOURS.T]


def test_a_patch_is_chosen_by_a_click_and_by_keys(show):
    maps = made()
    first = attention(maps)
    page_pixels = first.pixels
    page = show(Report(title="x", images=[first, attention(made(queries=BARE, keys=BARE))]))
    assert "attention of the class token: to patches" in page.text()
    assert "a click on a patch" in page.text()
    page.click("[aria-label='layer 1, head 2']")
    x, y = page.middle("canvas.seen", 9 / 25, 12 / 26)
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    query = 1 + 4 * 1 + 1
    assert "attention of row 2, column 2: to patches" in page.text()
    assert extent(maps.weights[0, 1, query, 1:], 1 / 13) in page.text()
    tip = page.hover(x, y)
    assert tip.startswith("row 2, column 2\nweight ")
    assert float(tip.split()[-1]) == pytest.approx(
        maps.weights[0, 1, query, query], abs=0.01 * float(maps.weights[0, 1, query].max())
    )
    page.run(f"{CANVAS}.focus()")
    page.press("ArrowRight")
    page.press("ArrowDown")
    assert "attention of row 3, column 3: to patches" in page.text()
    page.click("[aria-label='view'] button:nth-child(2)")
    patches = maps.weights[0, 1, 1 + 4 * 2 + 2, 1:]
    assert colour(page, 3, 3) == pytest.approx(expected_colour(patches, 0), abs=4)
    page.click("[aria-label='scale of colours'] button:nth-child(2)")
    top = maps.weights[:, :, 1 + 4 * 2 + 2, 1:].max()
    assert colour(page, 3, 3) == pytest.approx(expected_colour(np.append(patches, top), 0, low=0), abs=4)
    page.click("[aria-label='view'] button:nth-child(1)")
    over = np.add((1 - OPACITY) * 255 * greyed(page_pixels)[3, 3], OPACITY * np.array(
        expected_colour(np.append(patches, top), 0, low=0)))  # fmt: skip
    assert colour(page, 3, 3) == pytest.approx(over, abs=6)


def test_flat_attention_has_one_colour_and_says_so(show):
    weights = np.full((1, 2, 13, 13), 1 / 13, np.float32)
    weights[0, 1, 0, 3] *= 1.5
    page = show(Report(title="x", images=[attention(ImageMaps("self", weights, TILES, TILES))]))
    for head, flat in ((1, True), (2, False)):
        page.click(f"[aria-label='layer 1, head {head}']")
        page.click("[aria-label='view'] button:nth-child(2)")
        assert ("· flat" in page.text()) == flat
        at = [colour(page, 3 + 6 * i, 3) for i in range(4)]
        assert (len({*map(tuple, at)}) == 1) == flat
        (title,) = {page.run(f"document.querySelector(\"[aria-label='layer 1, head {head}']\").title")}
        assert title.endswith("flat") == flat


def test_queries_that_stand_nowhere_are_chosen_by_name(show):
    found = Tiling(0, 0, 1, 1, ("dog 0.98", "cat 0.71", "cat 0.55"))
    maps = made(queries=found, keys=BARE, name="decoder")
    page = show(Report(title="x", images=[attention(made(queries=BARE, keys=BARE), maps)]))
    assert "attention of dog 0.98: to patches" in page.text()
    assert "click on" not in page.text()
    assert page.run("document.querySelector('[aria-label=\"query\"]').innerText.includes('a patch')") is False
    page.click("[aria-label='query'] button:nth-child(3)")
    assert "attention of cat 0.55: to patches" in page.text()
    page.run(f"{CANVAS}.focus()")
    for key in ("ArrowRight", "ArrowLeft"):
        page.press(key)
    assert "attention of cat 0.71: to patches" in page.text()
    page.click("[aria-label='layer 2, head 1']")
    page.click("[aria-label='view'] button:nth-child(2)")
    assert colour(page, 3, 3) == pytest.approx(expected_colour(maps.weights[1, 0, 1], 0), abs=4)


def test_queries_alone_are_kept_as_they_are_when_patches_are_merged():
    maps = made(queries=Tiling(0, 0, 1, 1, ("dog", "cat")), keys=TILES)
    merged = maps.merged(2)
    assert (merged.queries.tokens, merged.queries.count, merged.keys.count) == (("dog", "cat"), 2, 5)
    np.testing.assert_allclose(merged.weights[..., 1:].sum(-1), maps.weights[..., 1:].sum(-1), rtol=1e-5)


def test_every_stack_and_picture_can_be_chosen(show):
    coarse = made(1, 2, BARE, Tiling(1, 2, 16, 12), name="stage 1")
    page = show(Report(title="x", images=[attention(coarse, made())]), width=360, dark=True)
    assert page.run("document.documentElement.scrollWidth") <= 360
    page.click("[aria-label='stack of layers'] button:nth-child(1)")
    assert "stage 1, layer 1" in page.text()
    assert "attention of row 2, column 3: to patches" in page.text()  # the middle, where there is no token
    assert "rollout" not in page.run("document.querySelector('.heads').innerText")
