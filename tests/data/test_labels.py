"""Labels that are none are refused where they enter, in a sentence that says which."""

from pathlib import Path

import numpy as np
import pytest

from flax_transformer.data import DataSet
from flax_transformer.data.audio.transform import CTCRows
from flax_transformer.data.image import Objects, image_scenes
from flax_transformer.data.image.image_set import InMemoryImages, labelled_images
from flax_transformer.data.label import check_boxes, check_classes
from flax_transformer.data.table import Table
from flax_transformer.task.image_input import opened
from flax_transformer.task.opened import Context
from flax_transformer.task.text_classification import LabelledTexts
from flax_transformer.train.folder import RunFolder

IMAGES = InMemoryImages(np.zeros((2, 8, 10, 3), np.uint8), "images")


class Set:
    """Data that are open."""

    def __init__(self, kind, part, classes=("cat", "dog")):
        self.found = DataSet({"train": part}, classes, kind)

    def open(self):
        return self.found


class Texts:
    def __init__(self, label):
        self.label = label

    def read(self, split):
        return Table({"text": ["a", "b"], "label": [0, self.label if split == "test" else 1]})

    def classes(self):
        return ("cat", "dog")


@pytest.mark.parametrize("label", [-1, 2, 77])
def test_a_number_of_no_class_is_refused(label, tmp_path):
    rule = f"numbers of the 2 classes, 0 to 1, got {label} in item 1 of"
    with pytest.raises(ValueError, match=rule):
        opened(Set("classes", labelled_images(IMAGES, np.array([1, label], np.int32))), "classes")
    with pytest.raises(ValueError, match=rule):
        LabelledTexts().open(Texts(label), Context(folder=RunFolder(tmp_path)))


@pytest.mark.parametrize(
    ("box", "number", "rule"),
    [
        ([0, 0, 9, 7], -1, "numbers of the 2 classes"),
        ([0, 0, 9, 7], 2, "numbers of the 2 classes"),
        ([0, 0, 90, 7], 1, r"within 10 × 8 pixels, got \(0, 0, 90, 7\)"),
        ([5, 0, 2, 7], 1, r"got \(5, 0, 2, 7\)"),
        ([0, 0, np.nan, 7], 1, "got"),
    ],
)
def test_an_object_that_is_none_is_refused(box, number, rule):
    objects = [Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int32))]
    objects.append(Objects(np.array([box], np.float32), np.array([number], np.int32)))
    with pytest.raises(ValueError, match=rule):
        opened(Set("boxes", image_scenes(IMAGES, objects, np.arange(2))), "boxes")


def test_what_fits_is_taken():
    check_classes([], ("cat", "dog"), "nothing")
    check_classes(np.array([0, 1, 1]), ("cat", "dog"), "images")
    check_boxes(np.array([[0, 0, 10, 8], [9.5, 7.5, 10.4, 8.4]]), (10, 8), "an image")


@pytest.mark.parametrize("token", [0, -1])
def test_a_text_with_the_blank_is_refused(token):
    sound = {"samples": np.zeros(4, np.float32), "tokens": np.array([2, token, 3])}
    with pytest.raises(ValueError, match=f"must not be the blank, 0, nor negative, got {token} at position 1"):
        CTCRows(samples=4, tokens=4)([sound, None])


def test_evaluations_have_the_rows_of_a_part_of_training():
    context = Context(folder=RunFolder(Path(".")), accumulate=4)
    assert [context.held_rows(rows) for rows in (64, 3)] == [16, 1]
