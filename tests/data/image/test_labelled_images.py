"""Drawn shapes: always the same, told apart by their outline and by nothing simpler."""

import numpy as np
import pytest

from flax_transformer.data.synthetic import SHAPES, DrawnShapes, LabelledImageData

SMALL = DrawnShapes(train=60, held_out=20, size=16)


def test_pictures_are_those_of_their_seed():
    one, same, other = (each.open().splits for each in (SMALL, SMALL, DrawnShapes(train=60, size=16, drawing_seed=1)))
    np.testing.assert_array_equal(one["train"]["image"].pixels, same["train"]["image"].pixels)
    assert one["test"].fingerprint == same["test"].fingerprint != one["validation"].fingerprint
    assert one["train"].fingerprint != other["train"].fingerprint


def test_every_class_is_there_and_has_no_colour_of_its_own():
    found = SMALL.open()
    assert found.classes == SHAPES
    train = found.splits["train"]
    assert set(train["label"]) == set(range(len(SHAPES)))
    means = [train["image"].pixels[train["label"] == label].mean() for label in range(len(SHAPES))]
    assert max(means) - min(means) < 40


def test_without_a_folder_shapes_are_drawn(tmp_path):
    assert len(LabelledImageData(shapes=SMALL).open().splits["test"]) == 20
    with pytest.raises(ValueError, match="must have class folders"):
        LabelledImageData(root=str(tmp_path), shapes=SMALL).open()


@pytest.mark.parametrize("options", [{"train": 0}, {"size": 7}, {"noise": -1.0}])
def test_what_cannot_be_drawn_is_refused(options):
    with pytest.raises(ValueError, match="shapes are drawn in at least 1 image a split, of at least 8 pixels"):
        DrawnShapes(**options)
