"""Drawn scenes and what is said of them: by hand, and that what is said is what is to be seen."""

import numpy as np
import pytest

from flax_transformer.data.synthetic import COLOURS, CaptionedScenes, SceneCaptions, tell

SCENES = CaptionedScenes(train=30, held_out=5, noise=0.0)


def test_what_is_said_by_hand():
    red, blue = ("red", "cross"), ("blue", "ellipse")
    assert tell([(3, red)]) == "a red cross"
    assert tell([(0, red), (1, blue)]) == "a red cross left of a blue ellipse"
    assert tell([(2, blue), (3, red)]) == "a blue ellipse left of a red cross"
    assert {tell([(0, red), (low, blue)]) for low in (2, 3)} == {"a red cross above a blue ellipse"}
    assert tell([(1, red), (2, blue)]) == "a red cross above a blue ellipse"


def test_each_shape_is_in_its_quarter_and_of_its_colour():
    half = SCENES.size // 2
    for number in range(30):
        pixels, placed = np.asarray(SCENES.draw(number)), SCENES.layout(number)
        ground = next(pixels[y, x] for y, x in ((0, 0), (0, -1), (-1, 0), (-1, -1)) if len(set(pixels[y, x])) == 1)
        there = (pixels != ground).any(-1)
        for quarter in range(4):
            y, x = (half * place for place in divmod(quarter, 2))
            part = pixels[y : y + half, x : x + half][there[y : y + half, x : x + half]]
            of = [colour for place, (colour, _) in placed if place == quarter]
            assert {tuple(each) for each in part.tolist()} == {COLOURS[colour] for colour in of}


def test_pictures_and_captions_are_those_of_the_seed():
    one, same, other = (
        SceneCaptions(shapes=CaptionedScenes(train=30, held_out=5, drawing_seed=s)).open() for s in (0, 0, 1)
    )
    assert one.splits["train"].fingerprint == same.splits["train"].fingerprint != other.splits["train"].fingerprint
    assert [len(one.splits[split]) for split in ("train", "validation", "test")] == [30, 5, 5]
    assert one.splits["test"]["captions"] != other.splits["test"]["captions"]
    np.testing.assert_array_equal(one.splits["test"]["image"][3], same.splits["test"]["image"][3])


@pytest.mark.parametrize("fields", [{"train": 0}, {"size": 15}, {"noise": -1.0}, {"drawing_seed": -1}])
def test_what_cannot_be_drawn_is_refused(fields):
    with pytest.raises(ValueError, match="scenes are drawn in at least 1 image a split, of at least 16 pixels"):
        CaptionedScenes(**fields)
