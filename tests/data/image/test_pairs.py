"""Images with captions and pairs of images: what is found in a folder, and what is refused."""

import contextlib
import json
from dataclasses import replace

import numpy as np
import PIL.Image
import pytest

from flax_transformer.data.image import CaptionData, ImagePairData, PairAugment
from flax_transformer.data.synthetic import ALL_COLOURS, CaptionedShapes
from flax_transformer.task.opened import Context
from flax_transformer.task.retrieval import ImagePairs
from flax_transformer.train.folder import RunFolder
from tests.data.image.image_files import pixels, write_image


def lines(path, *said):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in said))


def captions(root, count=12, name="captions.jsonl", place="images", **more):
    for number in range(count):
        write_image(root / place / f"{number}.png", pixels(number))
    said = [{"image": f"{number}.png", "captions": [f"image {number}", "an image"]} for number in range(count)]
    lines(root / name, *said, *more.get("said", ()))
    return root


def test_pictures_and_their_captions_are_found_and_parted(tmp_path):
    found = CaptionData(root=str(captions(tmp_path)), holdout=0.25).open()
    assert {split: len(each) for split, each in found.splits.items()} == {"train": 6, "validation": 3, "test": 3}
    names = [name for each in found.splits.values() for name in each["image"].names]
    assert sorted(names) == sorted(f"images/{number}.png" for number in range(12))
    for each in found.splits.values():
        for number, name in enumerate(each["image"].names):
            row = name.removeprefix("images/").removesuffix(".png")
            assert each[number]["captions"] == (f"image {row}", "an image")
            np.testing.assert_array_equal(np.asarray(each[number]["image"]), pixels(int(row)))


@pytest.mark.parametrize("line", [{"file_name": "0.png", "text": "one"}, {"image": "0.png", "caption": "one"}])
def test_splits_have_their_files_and_lines_their_words(tmp_path, line):
    for number in range(3):
        write_image(tmp_path / f"{number}.png", pixels(number))
    lines(tmp_path / "train.jsonl", line, "")
    lines(tmp_path / "dev.jsonl", {**line, next(iter(line)): "1.png"})
    lines(tmp_path / "test.jsonl", {**line, next(iter(line)): "2.png"})
    found = CaptionData(root=str(tmp_path)).open()
    assert [each["image"].names for each in found.splits.values()] == [["0.png"], ["1.png"], ["2.png"]]
    assert found.splits["test"]["captions"] == [("one",)]


GOOD = {"image": "0.png", "captions": ["one"]}


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (["{"], "line 1 must be JSON"),
        (["[]"], "line 1 must be an object with image and captions"),
        ([GOOD, {"captions": ["one"]}], "line 2 must name its image as image, got None"),
        ([{"image": "0.png"}], r"line 1: the image 0\.png must have captions, texts that are not empty, got None"),
        ([{"image": "0.png", "captions": []}], r"must have captions, texts that are not empty, got \[\]"),
        ([{"image": "0.png", "captions": ["one", " "]}], "must have captions, texts that are not empty"),
        ([{"image": "../0.png", "caption": "one"}], r"the image must lie within the folder, got '\.\./0\.png'"),
        ([{"image": "/0.png", "caption": "one"}], "the image must lie within the folder"),
        ([GOOD, {"image": "x.png", "caption": "one"}], r"line 2: the image x\.png must be there"),
        ([{"image": "x.png", "caption": "one"}], r"line 1: the image x\.png must be there, it is in no folder of"),
        ([GOOD, GOOD], r"the images must differ, got 0\.png in lines 1 and 2"),
        ([], "must have at least one line, got none"),
    ],
)
def test_a_bad_line_is_named(tmp_path, said, rule):
    write_image(tmp_path / "0.png")
    lines(tmp_path / "train.jsonl", *said)
    with pytest.raises(ValueError, match=rule) as error:
        CaptionData(root=str(tmp_path)).open()
    assert "train.jsonl" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_bad_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a folder of images and their captions"):
        CaptionData(root=str(tmp_path / "none")).open()
    with pytest.raises(ValueError, match="must have captions in a file of JSON lines"):
        CaptionData(root=str(tmp_path)).open()
    write_image(tmp_path / "0.png")
    lines(tmp_path / "test.jsonl", GOOD)
    with pytest.raises(ValueError, match="must have images of a split train, it has those of test"):
        CaptionData(root=str(tmp_path)).open()
    lines(tmp_path / "train.jsonl", GOOD)
    with pytest.raises(ValueError, match=r"splits must have different images, 0\.png is in"):
        CaptionData(root=str(tmp_path)).open()
    lines(tmp_path / "more.jsonl", GOOD)
    with pytest.raises(ValueError, match=r"more\.jsonl must name its split"):
        CaptionData(root=str(tmp_path)).open()
    (tmp_path / "more.jsonl").unlink()
    lines(tmp_path / "training.jsonl", GOOD)
    with pytest.raises(ValueError, match="a split must have one file of captions"):
        CaptionData(root=str(tmp_path)).open()


def twins(root, names=("a.png", "b.png", "c.png", "d.png"), sides=("one", "two")):
    for side in sides:
        for name in names:
            write_image(root / side / name, pixels(len(side + name) + ord(name[0]) + ord(side[0])))
    return root


def test_pictures_of_two_folders_are_paired_by_name(tmp_path):
    found = ImagePairData(root=str(twins(tmp_path)), holdout=0.25).open()
    assert {split: len(each) for split, each in found.splits.items()} == {"train": 2, "validation": 1, "test": 1}
    for each in found.splits.values():
        names = zip(each["image"].names, each["other"].names, strict=True)
        assert all(first == f"one/{second.removeprefix('two/')}" for first, second in names)


def test_pictures_without_their_twin_are_refused(tmp_path):
    write_image(twins(tmp_path) / "two" / "e.png")
    with pytest.raises(ValueError, match=r"two/e\.png must have an image of its name in one, it has none"):
        ImagePairData(root=str(tmp_path)).open()
    write_image(tmp_path / "three" / "a.png")
    with pytest.raises(ValueError, match="must have two folders of images, got one, three, two"):
        ImagePairData(root=str(tmp_path)).open()
    with pytest.raises(FileNotFoundError, match="must be a folder of two folders of images"):
        ImagePairData(root=str(tmp_path / "none")).open()


def changed(array, augment, seed):
    return np.asarray(augment({"image": PIL.Image.fromarray(array)}, np.random.default_rng(seed))["image"])


@pytest.mark.parametrize("name", ["flip", "turn", "channels"])
def test_both_halves_are_changed_alike(name):
    array, augment = pixels(3, 5, 5), PairAugment(**{name: 0.5})
    found = [changed(array, augment, seed) for seed in range(60)]
    for seed, each in enumerate(found):
        np.testing.assert_array_equal(255 - each, changed(255 - array, augment, seed))
    reached = {each.tobytes() for each in found}
    assert array.tobytes() in reached
    assert len(reached) == {"flip": 2, "turn": 4, "channels": 6}[name]
    still = [np.array_equal(each, array) for each in found]
    assert 0.3 < np.mean(still) < 0.8


def test_turns_and_mirrors_are_those_of_the_array():
    array = pixels(4, 5, 7)
    turns = {changed(array, PairAugment(turn=1.0), seed).tobytes() for seed in range(40)}
    assert turns == {np.rot90(array, count).tobytes() for count in (1, 2, 3)}
    np.testing.assert_array_equal(changed(array, PairAugment(flip=1.0), 0), array[:, ::-1])
    np.testing.assert_array_equal(changed(array[..., 0], PairAugment(channels=1.0), 0), array[..., 0])  # grey
    np.testing.assert_array_equal(changed(array, PairAugment(), 0), array)


def test_a_share_beyond_1_is_refused():
    with pytest.raises(ValueError, match=r"turn must be in \[0, 1\], got 1\.5"):
        PairAugment(turn=1.5)


def pair_batches(root, **options):
    opened = ImagePairs(rows=4, alike=PairAugment(**options)).open(
        ImagePairData(root=str(root)), Context(folder=RunFolder(root))
    )
    with contextlib.closing(opened.batches) as stream:
        return [next(stream)["inputs"] for _ in range(6)]


def test_rows_of_training_are_changed_alike_and_others_every_time(tmp_path):
    for number in range(6):
        for side in ("one", "two"):
            array = pixels(number, 6, 6)
            write_image(tmp_path / side / f"{number}.png", array if side == "one" else 255 - array)
    found = pair_batches(tmp_path, flip=0.5, turn=0.5, channels=0.5)
    for each in found:
        np.testing.assert_allclose(each["images"], -each["others"], atol=1e-6)  # values lie around 0
    assert len({image.tobytes() for each in found for image in each["images"]}) > 12  # of 4 images
    plain = pair_batches(tmp_path)
    assert len({image.tobytes() for each in plain for image in each["images"]}) == 4


def test_images_that_are_not_square_are_not_turned(tmp_path):
    with pytest.raises(ValueError, match=r"must be as high as wide, got alike\.turn and \(6, 8\) pixels"):
        pair_batches(twins(tmp_path), turn=0.1)


@pytest.mark.parametrize(("tested", "sizes"), [(1, {}), (12, {}), (48, {}), (6, {"colours": 6, "shapes": 4})])
def test_tested_combinations_are_unseen_but_not_their_parts(tested, sizes):
    shapes = CaptionedShapes(train=200, held_out=20, tested=tested, **sizes)
    found, every = shapes.open(), shapes.every
    seen, unseen = ({every[kind] for kind in shapes.kinds(split)} for split in ("train", "test"))
    assert len(unseen) == tested
    assert not seen & unseen
    assert {colour for colour, _ in seen} == {colour for colour, _ in every}
    assert {shape for _, shape in seen} == {shape for _, shape in every}
    for split, kinds in (("train", seen), ("validation", seen), ("test", unseen)):
        said = {caption.split(" ", 1)[1] for caption, *_ in found.splits[split]["captions"]}
        assert said <= {" ".join(kind) for kind in kinds}
    assert len(replace(shapes, unseen=False).kinds("train")) == len(every) == len(found.classes)


def test_a_drawn_picture_is_what_its_caption_says():
    found = CaptionedShapes(train=30, held_out=5, noise=0.0, spread=0.0).open().splits["train"]
    for number in range(30):
        colour = ALL_COLOURS[found["captions"][number][0].split()[1]]
        image = np.asarray(found[number]["image"])
        share = np.mean((image == colour).all(-1))
        assert 0.02 < share < 0.8
        np.testing.assert_array_equal(image, np.asarray(found["image"][number]))


@pytest.mark.parametrize(
    "options",
    [{"tested": 0}, {"tested": 49}, {"size": 7}, {"train": 0}, {"noise": -1.0}, {"colours": 13}, {"shapes": 1}],
)
def test_impossible_shapes_are_refused(options):
    with pytest.raises(ValueError, match=f"got.* {next(iter(options.values()))}|, {next(iter(options.values()))}"):
        CaptionedShapes(**options)
