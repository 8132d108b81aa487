"""Tables: rows, columns, what is taken of them, and what their fingerprints tell apart."""

import numpy as np
import pytest

from flax_transformer.data import Table
from flax_transformer.data.image.image_set import InMemoryImages, Objects, image_scenes, labelled_images
from flax_transformer.data.image.text import captioned_images, take_images, visual_questions
from flax_transformer.data.table import Gathered, Names, Numbers

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (6, 4, 5, 3)).astype(np.uint8)
IMAGES = InMemoryImages(PIXELS, "images of a test")
OBJECTS = [Objects(np.array([[0, 0, i, 2]], np.float32).repeat(i, 0), np.arange(i)) for i in range(6)]

TABLES = {
    "labels": lambda: labelled_images(IMAGES, np.arange(6) % 2),
    "captions": lambda: captioned_images(IMAGES, [(f"one of {i}", "another") for i in range(6)]),
    "scenes": lambda: image_scenes(IMAGES, OBJECTS, np.arange(6) * 7),
    "questions": lambda: visual_questions(
        IMAGES, np.array([5, 5, 0, 2, 1]), [f"{i}?" for i in range(5)], [("yes", "no")[:i] for i in (1, 2, 1, 1, 2)]
    ),
}
tables = pytest.mark.parametrize("name", TABLES)


def plain(row):
    """Write a row in values that compare, but for its number and the name, which says that of an image in memory."""
    left_out = ("number", "name", "objects")
    return {name: np.asarray(value).tolist() for name, value in row.items() if name not in left_out}


@tables
def test_what_is_taken_are_the_rows_in_that_order(name):
    table, indices = TABLES[name](), np.array([3, 0, 3, 4])
    taken = table.take(indices)
    rows = [plain(row) for row in taken]
    expected = [plain(table[int(index)]) for index in indices]
    if name == "questions":  # numbered anew, as in every table of questions
        assert [row.pop("label") for row in rows] == [0, 1, 2, 3]
        assert [row.pop("label") for row in expected] == indices.tolist()
    assert rows == expected
    assert [plain(row) for row in taken.take(np.arange(4))] == [plain(row) for row in taken]


@tables
def test_fingerprints_name_the_values_and_their_order(name):
    one, same = TABLES[name](), TABLES[name]()
    assert one.fingerprint == same.fingerprint == one.take(np.arange(len(one))).fingerprint
    others = [one.take(np.arange(len(one))[::-1]), one.take(np.arange(len(one) - 1))]
    assert len({one.fingerprint, *(each.fingerprint for each in others)}) == 3


@tables
def test_every_value_is_in_the_fingerprint(name):
    table, found = TABLES[name](), set()
    for column in table.columns:
        if not isinstance(table[column], Names | Numbers) and column != "size":  # all are of one size
            order = np.roll(np.arange(len(table)), 1)
            changed = table[column]
            changed = (
                [changed[i] for i in order]
                if isinstance(changed, list)
                else (changed[order] if isinstance(changed, np.ndarray) else changed.take(order))
            )
            found.add(table.with_columns(**{column: changed}).fingerprint)
    assert table.fingerprint not in found
    assert len(found) > 1


def test_images_are_taken_with_all_their_questions():
    table = TABLES["questions"]()
    taken = take_images(table, np.array([5, 1]))
    assert taken["question"] == ["0?", "1?", "4?"]
    assert taken["image"].of.tolist() == [0, 0, 1]
    assert len(taken["image"].source) == 2
    for row, old in zip(taken, (0, 1, 4), strict=True):
        np.testing.assert_array_equal(row["image"], table[old]["image"])
        assert row["answers"] == table[old]["answers"]


def test_values_are_read_when_they_are_asked_for():
    read = []

    class Source:
        fingerprint = "a source"

        def __len__(self):
            return 3

        def __getitem__(self, index):
            read.append(index)
            return f"value {index}"

        def name(self, index):
            return f"file {index}"

    source = Source()
    table = Table(
        {"value": Gathered(source, np.array([2, 2, 1])), "name": Names(Gathered(source, np.array([2, 2, 1])))}
    )
    assert (len(table), table["name"][0], read) == (3, "file 2", [])
    assert table[1] == {"value": "value 2", "name": "file 2"}
    assert read == [2]


def test_values_of_arrays_are_plain():
    row = Table({"label": np.array([3], np.int32), "text": np.array(["a"]), "box": np.zeros((1, 4))})[0]
    assert (type(row["label"]), type(row["text"]), row["box"].shape) == (int, str, (4,))


@pytest.mark.parametrize("columns", [{}, {"a": [1, 2], "b": np.zeros(3)}])
def test_columns_of_several_lengths_are_refused(columns):
    with pytest.raises(ValueError, match="a table must have columns, all of one length"):
        Table(columns)
