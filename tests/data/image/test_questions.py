"""Images with questions: what is found in a folder, what is refused, and drawn scenes whose answers are right."""

import numpy as np
import pytest

from flax_transformer.data.image import QuestionData
from flax_transformer.data.image.text import most_frequent, take_images
from flax_transformer.data.synthetic import COLOURS, SHAPES, ShapeVQA
from tests.data.image.image_files import pixels, write_image
from tests.data.image.test_pairs import lines


def questions(root, count=12, each=3, name="questions.jsonl"):
    """Write images with some questions each, those of an image apart."""
    for number in range(count):
        write_image(root / "images" / f"{number}.png", pixels(number))
    said = [
        {"image": f"{number}.png", "question": f"what is {which} of {number}?", "answers": [f"{number}"]}
        for which in range(each)
        for number in range(count)
    ]
    lines(root / name, *said)
    return root


def test_questions_are_parted_with_their_pictures(tmp_path):
    found = QuestionData(root=str(questions(tmp_path)), holdout=0.25).open()
    assert {split: len(each) for split, each in found.splits.items()} == {"train": 18, "validation": 9, "test": 9}
    names = [name for each in found.splits.values() for name in each["image"].source.names]
    assert sorted(names) == sorted(f"images/{number}.png" for number in range(12))
    for each in found.splits.values():
        for i in range(len(each)):
            number = each[i]["question"].split()[-1].rstrip("?")
            assert each[i]["answers"] == (number,)
            assert each[i]["name"].endswith(f"images/{number}.png")
            assert each[i]["label"] == i
            np.testing.assert_array_equal(np.asarray(each[i]["image"]), pixels(int(number)))


def test_questions_of_several_answers_may_be_left_out(tmp_path):
    questions(tmp_path, name="train.jsonl")
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write('{"image": "0.png", "question": "which?", "answer": ["a", "b"]}\n')
    every, single = (QuestionData(root=str(tmp_path), single=each).open() for each in (False, True))
    asked = [sorted(q for each in found.splits.values() for q in each["question"]) for found in (every, single)]
    assert set(asked[0]) - set(asked[1]) == {"which?"}
    assert ("a", "b") in [answers for each in every.splits.values() for answers in each["answers"]]


GOOD = {"image": "0.png", "question": "what?", "answers": ["one"]}


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (["{"], "line 1 must be JSON"),
        (["[]"], "line 1 must be an object with image and question and answers"),
        ([GOOD, {"question": "what?", "answers": ["one"]}], "line 2 must name its image as image, got None"),
        (
            [{"image": "0.png", "answers": ["one"]}],
            r"line 1: the image 0\.png must have a question, a text, got None",
        ),
        ([{**GOOD, "question": " "}], "must have a question, a text, got ' '"),
        ([{**GOOD, "question": ["a?", "b?"]}], r"must have a question, a text, got \['a\?', 'b\?'\]"),
        ([{"image": "0.png", "question": "what?"}], "line 1: the question 'what[?]' must have answers, .*got None"),
        ([{**GOOD, "answers": []}], r"must have answers, texts that are not empty, got \[\]"),
        ([{**GOOD, "answers": [3]}], r"must have answers, texts that are not empty, got \[3\]"),
        ([{**GOOD, "image": "../0.png"}], "the image must lie within the folder"),
        ([GOOD, {**GOOD, "image": "x.png"}], r"line 2: the image x\.png must be there"),
        ([], "must have at least one line, got none"),
    ],
)
def test_a_bad_line_is_named(tmp_path, said, rule):
    write_image(tmp_path / "0.png")
    lines(tmp_path / "train.jsonl", *said)
    with pytest.raises(ValueError, match=rule) as error:
        QuestionData(root=str(tmp_path)).open()
    assert "train.jsonl" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_bad_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a folder of images and their questions"):
        QuestionData(root=str(tmp_path / "none")).open()
    write_image(tmp_path / "0.png")
    lines(tmp_path / "train.jsonl", GOOD)
    lines(tmp_path / "test.jsonl", GOOD)
    with pytest.raises(ValueError, match=r"splits must have different images, 0\.png is in"):
        QuestionData(root=str(tmp_path)).open()
    lines(tmp_path / "train.jsonl", {**GOOD, "answers": ["one", "two"]})
    with pytest.raises(ValueError, match=r"train\.jsonl must have questions of a single answer, got none"):
        QuestionData(root=str(tmp_path), single=True).open()


def test_the_most_frequent_answers_come_first():
    assert most_frequent([("b",), ("a", "b"), ("c",), ("a",), ("b", "b")], 2) == ("b", "a")


def seen(scenes, number):
    """Return what a scene shows by its image: of each object its colour, its share of its box, and its middle."""
    image, objects = np.asarray(scenes.draw(number)).astype(int), scenes.layout(number)
    for box, label in zip(objects.boxes.astype(int), objects.classes, strict=True):
        part = image[box[1] : box[3], box[0] : box[2]]
        colours = {name: np.abs(part - value).max(-1) < 3 for name, value in COLOURS.items()}
        name = max(colours, key=lambda each: colours[each].mean())
        yield name, SHAPES[label], (box[0] + box[2]) / 2, colours[name].mean()


def test_answers_are_what_the_picture_shows():
    scenes, kinds = ShapeVQA(noise=0.0, objects=3), set()
    for number in range(40):
        objects = list(seen(scenes, number))
        assert all(share > 0.3 for *_, share in objects)
        for question, answer in scenes.ask(number):
            words = question.rstrip("?").split()
            kinds.add((" ".join(words[:2]), answer in ("yes", "no")))
            named = [(colour, shape) for colour, shape, *_ in objects]
            if words[0] == "how":
                kind = words[2].removesuffix("es" if words[2].startswith("cross") else "s")
                assert int(answer) == sum(kind in (shape, "shape") for _, shape in named)
            elif words[:2] == ["what", "colour"]:
                assert [colour for colour, shape in named if shape == words[-1]] == [answer]
            elif words[:2] == ["what", "shape"]:
                assert [shape for colour, shape in named if colour == words[-1]] == [answer]
            elif words[0] == "is" and words[1] == "there":
                assert (tuple(words[-2:]) in named) == (answer == "yes")
            else:
                one, other = tuple(words[2:4]), tuple(words[-2:])
                place = {(colour, shape): middle for colour, shape, middle, _ in objects}
                assert (place[one] < place[other]) == (answer == "yes")
    assert len(kinds) == 5


def test_scenes_and_questions_are_those_of_their_seed():
    one, same, other = (ShapeVQA(train=20, held_out=5, scene_seed=seed).open() for seed in (0, 0, 1))
    for split in one.splits:
        assert one.splits[split].fingerprint == same.splits[split].fingerprint != other.splits[split].fingerprint
        assert len(one.splits[split]) == 4 * len(one.splits[split]["image"].source)
    picked = take_images(one.splits["train"], np.array([3, 1]))
    assert len(picked) == 8
    assert picked[0]["question"] == one.splits["train"][4]["question"]
    np.testing.assert_array_equal(picked[0]["image"], one.splits["train"]["image"].source[1])


@pytest.mark.parametrize("count", [0, 17])
def test_impossible_numbers_of_questions_are_refused(count):
    with pytest.raises(ValueError, match=f"questions must be from 1 to 16 an image, got {count}"):
        ShapeVQA(questions=count)
