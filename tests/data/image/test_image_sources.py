"""A folder of images of whichever form: what is found, held out and refused."""

import json
import random
import shutil
import unicodedata

import numpy as np
import pytest

from flax_transformer.data.image import ImageData, decode_image, open_images
from flax_transformer.data.split import hold_out, stratified_subset
from tests.data.image.image_files import (
    class_folders,
    coco,
    coco_folder,
    idx_bytes,
    idx_folder,
    pixels,
    tfds_folder,
    write_image,
)

pytestmark = pytest.mark.proves("pictures", "class folders, idx, COCO json and TFDS, whichever a folder holds")


def names(pictures):
    return [pictures["name"][index] for index in range(len(pictures))]


def labelled(found, split="train"):
    pictures = found.splits[split]
    return {(name, found.classes[label]) for name, label in zip(names(pictures), pictures["label"], strict=True)}


@pytest.mark.parametrize(
    "folders", [("train", "validation", "test"), ("Train", "val", "TEST"), ("training", "valid", "testing")]
)
def test_class_folders_of_splits(tmp_path, folders):
    for number, folder in enumerate(folders):
        class_folders(tmp_path / folder, count=3 + number)
    found = open_images(tmp_path)
    assert found.kind == "classes"
    assert found.classes == ("cat", "dog")
    assert {split: len(each) for split, each in found.splits.items()} == {"train": 6, "validation": 8, "test": 10}
    for split, folder in zip(("train", "validation", "test"), folders, strict=True):
        expected = {(str(path), path.parent.name) for path in (tmp_path / folder).glob("*/*")}
        assert labelled(found, split) == expected
    first = found.splits["train"][0]
    np.testing.assert_array_equal(np.asarray(first["image"]), pixels(0))


def test_folders_may_be_nested_and_named_as_people_name_them(tmp_path):
    root = tmp_path / "archive" / "My images"
    class_folders(root, classes=("Grüße", "naïve dog", "猫"), suffix=".PNG")
    write_image(root / "猫" / "more" / "deep" / "x.JPG")
    (root / "猫" / "notes.txt").write_text("no image")
    (root / "猫" / ".hidden.png").write_bytes(b"")
    (tmp_path / "__MACOSX").mkdir()
    found = open_images(tmp_path)
    assert found.classes == tuple(sorted(("Grüße", "naïve dog", "猫")))
    assert sum(len(each) for each in found.splits.values()) == 16


def test_a_class_may_be_called_as_a_split_is(tmp_path):
    class_folders(tmp_path, classes=("bus", "car", "train"))
    assert open_images(tmp_path).classes == ("bus", "car", "train")


def test_names_that_file_systems_write_in_two_ways_are_one_class(tmp_path):
    class_folders(tmp_path / "train", classes=(unicodedata.normalize("NFC", "Grüße"), "x"))
    class_folders(tmp_path / "test", classes=(unicodedata.normalize("NFD", "Grüße"), "x"))
    assert open_images(tmp_path).classes == (unicodedata.normalize("NFC", "Grüße"), "x")


def test_classes_that_are_numbers_are_in_their_order(tmp_path):
    assert open_images(class_folders(tmp_path, classes=("10", "9", "1"))).classes == ("1", "9", "10")


def test_a_held_out_part_is_a_partition_even_over_the_classes(tmp_path):
    found = open_images(class_folders(tmp_path, count=20))
    everything = [name for each in found.splits.values() for name in names(each)]
    assert len(everything) == len(set(everything)) == 40
    for split in ("validation", "test"):
        assert np.bincount(found.splits[split]["label"]).tolist() == [2, 2]


def test_only_missing_splits_are_held_out(tmp_path):
    class_folders(tmp_path / "train", count=10)
    class_folders(tmp_path / "test", count=4)
    found = open_images(tmp_path, holdout=0.2)
    assert {split: len(each) for split, each in found.splits.items()} == {"train": 16, "validation": 4, "test": 8}
    assert {name.split("/")[-3] for name in names(found.splits["validation"])} == {"train"}


def test_which_are_held_out_depends_on_names_and_seed_not_on_order():
    named = [f"{label}/{number}" for label in "ab" for number in range(30)]
    labels = np.repeat([0, 1], 30)
    order = random.Random(1).sample(range(60), 60)
    plain = hold_out(named, labels, ["test"], share=0.2, seed=3)
    moved = hold_out([named[i] for i in order], labels[order], ["test"], share=0.2, seed=3)
    assert {named[i] for i in plain["test"]} == {named[order[i]] for i in moved["test"]}
    assert len(plain["test"]) == 12
    other = hold_out(named, labels, ["test"], share=0.2, seed=4)
    assert set(other["test"]) != set(plain["test"])


def test_a_limit_takes_every_class_its_share_and_fewer_are_some_of_more():
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat([0, 1, 2], [10, 40, 50]))
    named = [f"image {number}" for number in range(100)]
    before: set[int] = set()
    for count in (3, 10, 50, 100):
        chosen = stratified_subset(named, labels, count, seed=1)
        assert len(set(chosen.tolist())) == count
        assert before <= set(chosen.tolist())
        before = set(chosen.tolist())
        shares = np.bincount(labels[chosen], minlength=3) - count * np.array([0.1, 0.4, 0.5])
        assert np.abs(shares).max() <= 1
    order = rng.permutation(100)
    moved = stratified_subset([named[i] for i in order], labels[order], 50, seed=1)
    np.testing.assert_array_equal(np.sort(order[moved]), stratified_subset(named, labels, 50, seed=1))
    assert set(stratified_subset(named, labels, 50, seed=2)) != set(stratified_subset(named, labels, 50, seed=1))
    for count in (2, 101):
        with pytest.raises(ValueError, match=f"limit must be from 3, one of each class, to 100, got {count}"):
            stratified_subset(named, labels, count, seed=1)


def test_data_train_on_as_many_pictures_as_the_limit_says(tmp_path):
    class_folders(tmp_path, count=10)
    few, all_of_them = (ImageData(root=str(tmp_path), holdout=0.2, limit=limit).open() for limit in (4, None))
    assert len(few.splits["train"]) == 4
    assert few.splits["test"].fingerprint == all_of_them.splits["test"].fingerprint
    assert {*names(few.splits["train"])} < {*names(all_of_them.splits["train"])}


def test_a_folder_elsewhere_is_split_alike(tmp_path):
    first = open_images(class_folders(tmp_path / "here", count=9))
    shutil.copytree(tmp_path / "here", tmp_path / "far" / "away")
    second = open_images(tmp_path / "far" / "away")
    assert {split: each.fingerprint for split, each in first.splits.items()} == {
        split: each.fingerprint for split, each in second.splits.items()
    }


@pytest.mark.parametrize("pack", [True, False])
def test_idx_files(tmp_path, pack):
    found = open_images(idx_folder(tmp_path / "MNIST" / "raw", pack=pack), holdout=0.1)
    assert (found.classes, found.channels) == (("0", "1"), 1)
    assert {split: len(each) for split, each in found.splits.items()} == {"train": 18, "validation": 2, "test": 6}
    expected = pixels(6, 6, 4, 5)
    for number in range(6):
        item = found.splits["test"][number]
        assert item["label"] == number % 2
        np.testing.assert_array_equal(np.asarray(item["image"]), expected[number])


def test_idx_files_packed_and_unpacked_side_by_side_are_read_once(tmp_path):
    idx_folder(tmp_path, pack=True)
    assert len(open_images(idx_folder(tmp_path, pack=False)).splits["test"]) == 6


def test_labels_of_idx_files_need_not_begin_at_zero(tmp_path):
    idx_folder(tmp_path, pack=False)
    for name, size in (("train", 20), ("t10k", 6)):
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(size) % 2 * 5 + 1))
    found = open_images(tmp_path)
    assert found.classes == ("1", "6")
    assert found.splits["test"]["label"].tolist() == [0, 1] * 3


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("annotations/instances_train2017.json", "train2017"),
        ("train.json", "images"),
        ("annotations/train.json", "images/train"),
        ("train/_annotations.coco.json", "train"),
        ("instances.json", ""),
    ],
)
def test_coco_json_finds_its_pictures(tmp_path, name, images):
    found = open_images(coco_folder(tmp_path, name=name, images=images), holdout=0.2)
    assert (found.kind, found.classes, found.class_ids) == ("boxes", ("cell", "Zelle für Zelle"), (1, 4))
    scenes = [scene for each in found.splits.values() for scene in (each[i] for i in range(len(each)))]
    assert sorted(len(scene["boxes"]) for scene in scenes) == [0, 0, 1, 1, 2, 2]
    full = next(scene for scene in scenes if len(scene["boxes"]) == 2)
    assert full["boxes"].tolist() == [[1, 1, 4, 5], [2.5, 0, 8, 6]]
    assert full["classes"].tolist() == [0, 1]
    assert full["size"].tolist() == [6, 8]


def test_the_pictures_of_coco_may_lie_behind_a_link(tmp_path):
    coco_folder(tmp_path / "data")
    shutil.move(tmp_path / "data" / "train2017", tmp_path / "elsewhere")
    (tmp_path / "data" / "train2017").symlink_to(tmp_path / "elsewhere")
    assert len(open_images(tmp_path / "data").splits["train"]) == 4


def test_crowds_are_kept_apart_and_boxes_are_cut_off_by_what_was_rounded(tmp_path):
    coco_folder(tmp_path)
    path = tmp_path / "annotations" / "instances_train2017.json"
    file = coco()
    file["annotations"] = [
        {"id": 1, "image_id": 10, "category_id": 1, "bbox": [-0.2, 1, 8.5, 5.4], "area": 30.5},
        {"id": 2, "image_id": 10, "category_id": 1, "bbox": [0, 0, 4, 4], "iscrowd": 1},
    ]
    path.write_text(json.dumps(file))
    objects = [each for split in open_images(tmp_path).splits.values() for each in split["objects"] if len(each)]
    assert [each.boxes.tolist() for each in objects] == [[[0, 1, 8, 6]]]
    truth = {name: each.tolist() for name, each in objects[0].truth().items()}
    assert truth == {
        "labels": [0, 0], "boxes": [[0, 1, 8, 6], [0, 0, 4, 4]], "areas": [30.5, 16], "crowd": [False, True],
    }  # fmt: skip


@pytest.mark.parametrize("boxes", [False, True])
def test_tfds_without_tensorflow(tmp_path, boxes):
    import sys

    folder = tfds_folder(tmp_path, boxes=boxes)
    found = open_images(tmp_path)
    assert "tensorflow" not in sys.modules
    assert folder.is_relative_to(tmp_path)
    assert (found.kind, found.classes) == ("boxes" if boxes else "classes", ("x", "y", "z"))
    assert {split: len(each) for split, each in found.splits.items()} == (
        {"train": 8, "validation": 1, "test": 4} if boxes else {"train": 6, "validation": 3, "test": 4}
    )
    by_pixels = {pixels(number, 6 + number % 2).tobytes(): number for number in range(9)}
    for pictures in found.splits.values():
        for index in range(len(pictures)):
            item = pictures[index]
            number = by_pixels[np.asarray(item["image"]).tobytes()]
            assert pictures["image"].size(index) == item["image"].size == (8, 6 + number % 2)
            if boxes:
                height = 6 + number % 2
                assert item["boxes"].tolist() == [[4, 0, 8, height / 2]] * (number % 3)
                assert item["classes"].tolist() == list(range(number % 3))
            else:
                assert item["label"] == number % 3


def test_tfds_features_that_name_code_are_refused(tmp_path):
    path = tfds_folder(tmp_path) / "features.json"
    path.write_text(path.read_text().replace("tensorflow_datasets.core.features.image_feature.Image", "os.system"))
    with pytest.raises(ValueError, match=r"features\.json may name features of TFDS, it names 'os\.system'"):
        open_images(tmp_path)


def test_classes_may_be_named(tmp_path):
    root = str(class_folders(tmp_path))
    assert ImageData(root=root, names=("Katze", "Hund")).open().classes == ("Katze", "Hund")
    with pytest.raises(ValueError, match=r"names must be as many as the classes, got Katze for cat, dog"):
        ImageData(root=root, names=("Katze",)).open()


def break_class(root):
    class_folders(root)
    (root / "bird").mkdir()


def break_splits(root):
    class_folders(root / "train")
    class_folders(root / "val", classes=("cat", "bird"))


def break_alone(root):
    class_folders(root / "val")
    class_folders(root / "test")


def break_beside(root):
    class_folders(root / "train")
    class_folders(root / "extra")


def break_loose(root):
    class_folders(root)
    write_image(root / "loose.png")


def break_twice(root):
    class_folders(root / "val")
    class_folders(root / "valid")
    class_folders(root / "train")


def break_forms(root):
    coco_folder(root)
    idx_folder(root)


def break_idx(root):
    idx_folder(root)
    class_folders(root)


def break_archive(root):
    root.mkdir()
    (root / "train.tar.gz").write_bytes(b"")


def break_pair(root):
    idx_folder(root)
    (root / "t10k-labels-idx1-ubyte.gz").unlink()


FOLDERS = {
    "empty": (lambda root: root.mkdir(), "must have class folders, .*or idx files, got none"),
    "idx and classes": (break_idx, "must have images in one form, got idx files and class folders"),
    "an archive": (break_archive, "got none; unpack train.tar.gz first"),
    "one class": (lambda root: class_folders(root, classes=("cat",)), "at least two classes, got"),
    "images alone": (lambda root: write_image(root / "x.png"), "at least two classes, got 0"),
    "an empty class": (break_class, "bird must have at least one image, as every class folder, got none"),
    "few images": (lambda root: class_folders(root, count=2), "a class must have at least 3 images"),
    "other classes": (break_splits, "the same classes, validation and train differ in bird, dog"),
    "no train": (break_alone, "must have images of a split train, it has those of test, validation"),
    "other folders": (break_beside, "must have folders of splits alone, as it has train, got extra"),
    "loose images": (break_loose, r"must have its images in class folders, got loose\.png beside cat"),
    "a split twice": (break_twice, "must have one folder for the split validation"),
    "two forms": (break_forms, "must have images in one form, got idx files and COCO annotations"),
    "images without labels": (break_pair, r"must have idx files of images and of labels, got .*t10k-images.* alone"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_that_make_no_sense_are_refused_in_one_sentence(tmp_path, name):
    make, message = FOLDERS[name]
    make(tmp_path / "data")
    with pytest.raises(ValueError, match=message) as refused:
        open_images(tmp_path / "data")
    assert str(tmp_path / "data") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="none must be a folder of images, there is none"):
        open_images(tmp_path / "none")


IDX = {
    "kind": (b"\0\0\x0d\x03" + idx_bytes(pixels())[4:], "must be an idx file of bytes"),
    "short": (idx_bytes(pixels(0, 20, 4, 5))[:-1], "must have the 400 values it says"),
    "long": (idx_bytes(pixels(0, 20, 4, 5)) + b"\0", "must have the 400 values it says"),
    "lying": (b"\0\0\x08\x03" + b"\xff" * 12, r"must have 1 to 4,294,967,296 values"),
    "empty": (b"", "must be an idx file of bytes"),
    "count": (idx_bytes(pixels(0, 19, 4, 5)), "a label for each image"),
    "axes": (idx_bytes(pixels(0, 20, 4, 5).reshape(20, 20)), "must have axes B H W"),
}


@pytest.mark.parametrize("name", IDX)
def test_damaged_idx_files_are_refused(tmp_path, name):
    content, message = IDX[name]
    (idx_folder(tmp_path, pack=False) / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        open_images(tmp_path)
    assert "train-" in str(refused.value)


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_cut_gzip_files_are_refused(tmp_path, cut):
    path = idx_folder(tmp_path) / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz"):
        open_images(tmp_path)


def changed(section, index, **values):
    def change(file):
        file[section][index] = {**file[section][index], **values}

    return change


def without(section, index, key):
    def change(file):
        del file[section][index][key]

    return change


COCO = {
    "an image's id missing": (without("images", 0, "id"), "images must have a whole number as id, got None"),
    "an annotation's id doubled": (changed("annotations", 1, id=2), "the ids of annotations must differ, got 2 twice"),
    "a category's id doubled": (changed("categories", 1, id=1), "the ids of categories must differ, got 1 twice"),
    "an image's id doubled": (changed("images", 1, id=10), "the ids of images must differ, got 10 twice"),
    "an unknown image": (changed("annotations", 0, image_id=99), "annotation 2 must be of a known image, got"),
    "a list as image": (changed("annotations", 0, image_id=[1]), r"of a known image, got image_id \[1\]"),
    "an unknown category": (changed("annotations", 0, category_id=2), "of a known category, got category_id 2"),
    "a box outside": (changed("annotations", 0, bbox=[5, 1, 4, 2]), r"annotation 2 must lie within .*8 × 6, got \[5"),
    "a box before": (changed("annotations", 0, bbox=[-3, 1, 4, 2]), r"must lie within its image of 8 × 6, got \[-3"),
    "a box of no area": (changed("annotations", 0, bbox=[1, 1, 0, 2]), r"2 must have an area, got \[1, 1, 0, 2\]"),
    "a negative box": (changed("annotations", 0, bbox=[4, 4, -2, 2]), "must have an area"),
    "a box at the edge": (changed("annotations", 0, bbox=[8, 0, 0.4, 2]), "must have an area within its image"),
    "no box": (without("annotations", 0, "bbox"), "annotation 2 must have a bbox of four numbers, got None"),
    "a box of words": (changed("annotations", 0, bbox=[1, 1, "2", 2]), "must have a bbox of four numbers"),
    "a box without end": (changed("annotations", 0, bbox=[1, 1, float("inf"), 2]), "must have a bbox of four numbers"),
    "a nameless category": (without("categories", 0, "name"), "category 1 must have a name, got None"),
    "no categories": (lambda file: file["categories"].clear(), "must have at least one category"),
    "no images": (lambda file: file["images"].clear(), "must have at least one image"),
    "a missing image": (changed("images", 2, file_name="none.png"), r"image none\.png of image 12 must be there"),
    "an image elsewhere": (changed("images", 0, file_name="../../x.png"), "must lie within its folder"),
    "a rooted image": (changed("images", 0, file_name="/etc/x.png"), "must lie within its folder"),
    "a crowd of words": (changed("annotations", 0, iscrowd="no"), "iscrowd of annotation 2 must be 0 or 1, got 'no'"),
    "an area of words": (changed("annotations", 0, area="big"), "area of annotation 2 must be a number of pixels, got"),
    "no size": (changed("images", 0, width=0), "image 10 must have a width and height of pixels, got 0, 6"),
    "an image twice": (changed("images", 1, file_name="0.png"), r"images must differ, got 2 images of 0\.png"),
    "a category's name doubled": (changed("categories", 1, name="cell"), "must differ, got 'cell' for 1 and 4"),
    "an item that is none": (lambda file: file["annotations"].append(3), "annotations must be an object, got 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", COCO)
def test_annotations_that_make_no_sense_are_refused_by_file_id_and_value(tmp_path, name):
    change, message = COCO[name]
    path = coco_folder(tmp_path) / "annotations" / "instances_train2017.json"
    file = coco()
    change(file)
    path.write_text(json.dumps(file))
    with pytest.raises(ValueError, match=message) as refused:
        open_images(tmp_path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_annotations_cut_short_are_refused(tmp_path):
    path = coco_folder(tmp_path) / "annotations" / "instances_train2017.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"instances_train2017\.json must be JSON"):
        open_images(tmp_path)


def test_categories_that_differ_between_splits_are_refused(tmp_path):
    coco_folder(tmp_path)
    file = coco()
    file["categories"][1]["name"] = "other"
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(file))
    with pytest.raises(ValueError, match=r"all splits must have the same categories, .*val2017\.json differs in"):
        open_images(tmp_path)


def test_sizes_are_known_without_decoding(tmp_path, monkeypatch):
    found = open_images(class_folders(tmp_path, size=(5, 9)))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("decoded"))
    assert found.splits["train"]["image"].size(0) == (9, 5)


def test_a_damaged_picture_is_named_when_it_is_asked_for(tmp_path):
    (class_folders(tmp_path) / "cat" / "3.png").write_bytes(b"")
    found = open_images(tmp_path)
    everything = [(each, i) for each in found.splits.values() for i in range(len(each)) if "3.png" in each["name"][i]]
    pictures, index = next(each for each in everything if "cat" in each[0]["name"][each[1]])
    with pytest.raises(ValueError, match=r"cat/3\.png must be an image, it is empty"):
        pictures[index]
    assert decode_image(tmp_path / "cat" / "2.png").size == (8, 6)
