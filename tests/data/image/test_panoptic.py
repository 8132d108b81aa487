"""Images parted into segments in COCO's panoptic form: ids as colours, splits, and what is refused."""

import json
import shutil

import numpy as np
import PIL.Image
import pytest

from flax_transformer.data.image.panoptic import PanopticData, colours_to_ids, ids_to_colours
from flax_transformer.metric.panoptic_quality import count_segments, panoptic_quality

CATEGORIES = [{"id": 7, "name": "sky", "isthing": 0}, {"id": 3, "name": "cat", "isthing": 1}]


def write(root, splits=("train", "val"), count=6):
    """Write a folder: every image has a cat, two halves of sky of one id, and a line of nothing."""
    (root / "annotations").mkdir(parents=True)
    for split in splits:
        name, (images, annotations) = f"panoptic_{split}2017", ([], [])
        for folder in (root / f"{split}2017", root / "annotations" / name):
            folder.mkdir()
        for number in range(count):
            ids = np.full((10 + number, 12), 70_000 + number)
            ids[:, 4:8], ids[0] = 300, 0
            PIL.Image.fromarray(ids_to_colours(ids)).save(root / "annotations" / name / f"{number}.png")
            PIL.Image.new("RGB", (12, 10 + number), (number, 0, 0)).save(root / f"{split}2017" / f"{number}.jpg")
            images.append({"id": 40 + number, "file_name": f"{number}.jpg", "width": 12, "height": 10 + number})
            annotations.append({
                "image_id": 40 + number, "file_name": f"{number}.png", "segments_info": [
                    {"id": 300, "category_id": 3, "iscrowd": number % 2}, {"id": 70_000 + number, "category_id": 7},
                ],
            })  # fmt: skip
        said = {"images": images, "annotations": annotations[::-1], "categories": CATEGORIES}
        (root / "annotations" / f"{name}.json").write_text(json.dumps(said))
    return root


def test_colours_are_ids_and_back():
    ids = np.random.default_rng(0).integers(0, 256**3, (9, 7))
    np.testing.assert_array_equal(colours_to_ids(ids_to_colours(ids)), ids)


def test_a_folder_is_read(tmp_path):
    found = PanopticData(root=str(write(tmp_path))).open()
    assert (found.classes, found.class_ids, found.things, found.kind) == (
        ("cat", "sky"), (3, 7), (True, False), "segments",
    )  # fmt: skip
    assert {split: len(table) for split, table in found.splits.items()} == {"train": 5, "validation": 6, "test": 1}
    for table in found.splits.values():
        for row in table:
            segments, number = row["segments"], row["image"].height - 10
            assert segments["numbers"].shape == (row["image"].height, row["image"].width)
            assert segments["ids"].tolist() == [300, 70_000 + number]
            assert segments["classes"].tolist() == [0, 1]
            assert segments["crowd"].tolist() == [bool(number % 2), False]
            quality = panoptic_quality(count_segments(segments, segments, 2), found.things)
            assert quality["pq"] == 1.0


def test_rows_that_are_taken_keep_their_segments(tmp_path):
    table = PanopticData(root=str(write(tmp_path))).open().splits["validation"]
    taken = table.take(np.array([4, 1]))
    assert [int(row["segments"]["ids"][1]) for row in taken] == [70_004, 70_001]
    assert taken.fingerprint != table.fingerprint


def edited(change, file="panoptic_train2017.json"):
    def harm(root):
        path = root / "annotations" / file
        said = json.loads(path.read_text())
        change(said)
        path.write_text(json.dumps(said))

    return harm


def painted(root):
    path = root / "annotations/panoptic_train2017/2.png"
    PIL.Image.fromarray(ids_to_colours(np.full((12, 12), 5))).save(path)


def first(said):
    return said["annotations"][-1]  # of image 40


@pytest.mark.parametrize(
    ("harm", "rule"),
    [
        (lambda root: shutil.rmtree(root / "annotations"), "must have a file panoptic_train….json to train on"),
        (
            lambda root: (root / "annotations/panoptic_train2017.json").rename(root / "annotations/panoptic_a.json"),
            "panoptic_a.json must name its split",
        ),
        (edited(lambda said: said.pop("categories")), "must have lists of images, annotations and categories"),
        (edited(lambda said: said["categories"][0].pop("isthing")), "isthing of category 7 must be 0 or 1, got None"),
        (
            edited(lambda said: said["categories"][0].update(isthing=1), "panoptic_val2017.json"),
            "all splits must have the same categories",
        ),
        (edited(lambda said: said["annotations"].pop()), "every image must have an annotation, image 40 has none"),
        (edited(lambda said: said["annotations"].append(first(said))), "one annotation, image 40 has two"),
        (edited(lambda said: first(said).update(image_id=9)), "of a known image, got image_id 9"),
        (edited(lambda said: first(said).update(file_name="../0.png")), "must lie within its folder, got '../0.png'"),
        (edited(lambda said: first(said).update(file_name="9.png")), "the map 9.png of image 40 must be there"),
        (edited(lambda said: first(said).update(segments_info=None)), "image 40 must have a list of segments_info"),
        (
            edited(lambda said: first(said)["segments_info"][0].update(id=70_000)),
            "segments of image 40 must have ids of their own from 1 to 16777215, got 70000",
        ),
        (
            edited(lambda said: first(said)["segments_info"][0].update(category_id=8)),
            "segment 300 must be of a known category, got category_id 8",
        ),
        (
            edited(lambda said: first(said)["segments_info"][0].update(iscrowd=2)),
            "iscrowd of segment 300 must be 0 or 1, got 2",
        ),
        (lambda root: (root / "train2017/3.jpg").unlink(), "the image 3.jpg of image 43 must be there"),
    ],
)
def test_what_is_no_such_folder_is_refused(tmp_path, harm, rule):
    harm(write(tmp_path))
    with pytest.raises(ValueError, match=rule):
        PanopticData(root=str(tmp_path)).open()


@pytest.mark.parametrize(
    ("harm", "rule"),
    [
        (painted, "2.png must have the ids of its segments_info and no others, they differ in 5, 300, 70002"),
        (
            lambda root: PIL.Image.new("L", (12, 12)).save(root / "annotations/panoptic_train2017/2.png"),
            "must have colours of 8 bits that are ids, it is of mode L",
        ),
        (
            lambda root: (root / "annotations/panoptic_train2017/2.png").write_bytes(b"x"),
            "must be a PNG of ids of segments",
        ),
    ],
)
def test_a_map_that_is_none_is_refused_when_it_is_read(tmp_path, harm, rule):
    harm(write(tmp_path))
    splits = PanopticData(root=str(tmp_path)).open().splits
    with pytest.raises(ValueError, match=rule):
        [segments for split in ("train", "test") for segments in map(splits[split]["segments"].__getitem__, range(5))]


def test_no_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a folder of images"):
        PanopticData(root=str(tmp_path / "none")).open()
