"""Rollout, patches made one, and the page on which a patch is chosen that looks."""

import base64
import json
import re

import numpy as np
import pytest

from flax_transformer.report import ImageAttention, ImageMaps, Report, Tiling, image_attention_figure, render
from flax_transformer.report.image_attention import packed

pytestmark = pytest.mark.proves("report", "attention over pictures, rollout")

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


def test_weights_are_kept_to_a_hundredth_of_the_most_in_their_row():
    maps = made()
    (kept,) = packed(attention(maps), 10**6)[0]["maps"]
    every = np.concatenate([maps.weights, maps.rollout()[:, None]], 1)
    most = np.frombuffer(base64.b64decode(kept["most"]), "<f4").reshape(every.shape[:3])
    codes = np.frombuffer(base64.b64decode(kept["weights"]), np.uint8).reshape(every.shape)
    assert (np.abs(most[..., None] * (codes / 255.0) ** 2 - every).max(-1) <= 0.01 * every.max(-1)).all()


def test_patches_are_merged_until_they_fit_and_it_says_so(monkeypatch):
    monkeypatch.setattr("flax_transformer.report.page.SEEN", 6_000)
    large, small = made(queries=Tiling(9, 9, 2, 2), keys=Tiling(9, 9, 2, 2)), made(queries=BARE, keys=BARE)
    page = render(Report(title="x", images=[attention(large, small)]))
    maps = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))["seen"][0]["maps"]
    assert [(each["keys"]["rows"], each["keys"]["columns"]) for each in maps] == [(5, 5), (3, 4)]
    assert "of up to 2 × 2 patches together" in page


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
    assert [axes.get_title() for axes in figure.axes] == [
        "picture",
        "head 1",
        "head 2",
        "head 3",
        "mean of heads",
        "rollout",
    ]
    assert figure.get_suptitle() == "self attention, layer 1 of 2, of the patch in row 2, column 2"
    assert "of the class token" in image_attention_figure(attention(made())).get_suptitle()
    assert "mean of all patches" in image_attention_figure(attention(made(queries=BARE, keys=BARE))).get_suptitle()


def test_weights_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"must be \[layers, heads, 13, 13\], got \(1, 1, 12, 13\)"):
        ImageMaps("self", np.zeros((1, 1, 12, 13), np.float32), TILES, TILES)


CANVAS = "document.querySelector('canvas.seen')"


def brightness(page, x, y):
    """Read the picture's canvas at a place given in pixels of the picture."""
    at = f"c.width / 25 * {x}, c.height / 26 * {y}, 1, 1"
    return page.run(f"(() => {{ const c = {CANVAS}; return c.getContext('2d').getImageData({at}).data[0]; }})()")


def test_a_patch_is_chosen_by_a_click_and_by_keys(show):
    maps = made()
    page = show(Report(title="x", images=[attention(maps), attention(made(queries=BARE, keys=BARE))]))
    assert "class token looks at patches by" in page.text()
    page.click("[aria-label='layer 1, head 2']")
    x, y = page.middle("canvas.seen", 9 / 25, 12 / 26)
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    query = 1 + 4 * 1 + 1
    assert "row 2, column 2 looks at patches by" in page.text()
    tip = page.hover(x, y)
    assert tip.startswith("row 2, column 2\nweight ")
    assert float(tip.split()[-1]) == pytest.approx(
        maps.weights[0, 1, query, query], abs=0.01 * float(maps.weights[0, 1, query].max())
    )
    page.run(f"{CANVAS}.focus()")
    page.press("ArrowRight")
    page.press("ArrowDown")
    assert "row 3, column 3 looks at patches by" in page.text()
    page.click("[aria-label='how'] button:nth-child(2)")
    patches = maps.weights[0, 1, 1 + 4 * 2 + 2, 1:]
    strong = 255 + (12 - 255) * np.sqrt(patches[0] / patches.max())
    assert brightness(page, 3, 3) == pytest.approx(strong, abs=4)


def test_queries_that_stand_nowhere_are_chosen_by_name(show):
    found = Tiling(0, 0, 1, 1, ("dog 0.98", "cat 0.71", "cat 0.55"))
    maps = made(queries=found, keys=BARE, name="decoder")
    page = show(Report(title="x", images=[attention(made(queries=BARE, keys=BARE), maps)]))
    assert "dog 0.98 looks at patches by" in page.text()
    assert page.run("document.querySelector('[aria-label=\"who looks\"]').innerText.includes('a patch')") is False
    page.click("[aria-label='who looks'] button:nth-child(3)")
    assert "cat 0.55 looks at patches by" in page.text()
    page.run(f"{CANVAS}.focus()")
    for key in ("ArrowRight", "ArrowLeft"):
        page.press(key)
    assert "cat 0.71 looks at patches by" in page.text()
    page.click("[aria-label='layer 2, head 1']")
    page.click("[aria-label='how'] button:nth-child(2)")
    patches = maps.weights[1, 0, 1]
    assert brightness(page, 3, 3) == pytest.approx(255 + (12 - 255) * np.sqrt(patches[0] / patches.max()), abs=4)


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
    assert "row 2, column 3 looks at patches by" in page.text()  # the middle, where no token looks
    assert "rollout" not in page.run("document.querySelector('.heads').innerText")
