"""Streams of images: the same batches whatever the threads and processes, exact resumption, every image once."""

import contextlib
import json
from itertools import islice

import jax
import numpy as np
import pytest

from flax_transformer.data import shuffled
from flax_transformer.data.image import (
    CenterCrop,
    ColourJitter,
    DecodedRows,
    Erase,
    Flip,
    ImageRows,
    ImageStream,
    InMemoryImages,
    InMemoryRows,
    MixupCutmix,
    Normalise,
    RandAugment,
    RandomApply,
    RandomCrop,
    RandomResize,
    RandomResizedCrop,
    Resize,
    SceneRows,
    ShiftFlip,
    each_image_once,
    labelled_images,
    load_images,
    open_images,
)
from tests.data.image.image_files import class_folders, coco, coco_folder, idx_folder, pixels, write_image

pytestmark = pytest.mark.proves("pictures", "batches resumed bit for bit, the same from any threads and processes")

NORMALISE = Normalise(mean=(0.5,) * 3, std=(0.25,) * 3)
AUGMENT = (ShiftFlip(pad=2), NORMALISE, Erase(share=0.5), MixupCutmix(classes=2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return class_folders(tmp_path_factory.mktemp("folder"), count=12)


def decoded(folder, seed=0):
    each = (RandomResizedCrop(size=8), Flip(), ColourJitter(brightness=0.4), RandAugment(deviation=0.5))
    return DecodedRows(shuffled(open_images(folder).splits["train"], *each, seed=seed), ImageRows())


def held(folder, seed=0):
    return InMemoryRows(load_images(open_images(folder).splits["train"]), seed)


def scenes(folder, seed=0):
    each = (Flip(), RandomApply(transforms=(RandomCrop(),)), RandomResize(sizes=(6, 9), longest=12))
    return DecodedRows(shuffled(open_images(folder).splits["train"], *each, seed=seed), SceneRows(size=12))


SOURCES = {"decoded": (decoded, AUGMENT), "held": (held, AUGMENT), "scenes": (scenes, (NORMALISE,))}


@pytest.fixture(params=SOURCES)
def make(request, folder, tmp_path):
    source, augment = SOURCES[request.param]
    root = coco_folder(tmp_path) if request.param == "scenes" else folder

    def make(seed=0, **options):
        return ImageStream(source(root, seed), *augment, rows=8, seed=seed, pairs=True, **options)

    return make


def take(stream, count):
    batches = list(islice(stream, count))
    stream.close()
    return batches


def assert_same(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.rotates
def test_ten_and_ten_batches_are_twenty(make):
    whole = take(make(), 20)
    first = make()
    begun = take(first, 10)
    second = make()
    second.set_state(json.loads(json.dumps(first.get_state())))
    assert_same(begun + take(second, 10), whole)


def test_batches_do_not_depend_on_threads(make):
    assert_same(take(make(threads=1), 6), take(make(threads=7, prefetch=3), 6))


@pytest.mark.rotates
@pytest.mark.parametrize("count", [2, 4])
def test_processes_lay_out_parts_of_the_same_batch(make, count):
    parts = [take(make(process_index=index, process_count=count), 4) for index in range(count)]
    joined = [jax.tree.map(lambda *rows: np.concatenate(rows), *step) for step in zip(*parts, strict=True)]
    assert_same(joined, take(make(), 4))


def test_another_seed_gives_other_batches(make):
    ours, theirs = take(make(0), 1)[0], take(make(1), 1)[0]
    assert (ours["inputs"]["images"] != theirs["inputs"]["images"]).any()


def test_a_position_of_another_pipeline_is_refused(make):
    with pytest.raises(ValueError, match="augment_seed: saved 1, now 0"):
        make(0).set_state(make(1).get_state())


@pytest.mark.parametrize("source", [decoded, held])
def test_every_picture_comes_once_an_epoch_in_an_order_of_its_own(folder, source):
    """20 training images in batches of 5 that are not changed: four batches are an epoch."""
    train = open_images(folder).splits["train"]
    rows = InMemoryRows(load_images(train), 0) if source is held else DecodedRows(shuffled(train, seed=0), ImageRows())
    batches = take(ImageStream(rows, rows=5, seed=0), 8)
    contents = [[image.tobytes() for image in batch["inputs"]["images"]] for batch in batches]
    first, second = ([image for batch in part for image in batch] for part in (contents[:4], contents[4:]))
    assert len(set(first)) == len(first) == len(train) == 20
    assert set(first) == set(second)
    assert first != second


def test_held_pictures_are_those_that_are_decoded(folder):
    train = open_images(folder).splits["train"]
    kept = load_images(train, Resize(size=10), CenterCrop(size=10))
    assert kept["image"].pixels.shape == (20, 10, 10, 3)
    for index in range(20):
        image, none = train[index]["image"], np.random.default_rng(0)
        expected = CenterCrop(size=10)(Resize(size=10)({"image": image}, none), none)["image"]
        np.testing.assert_array_equal(kept["image"].pixels[index], np.asarray(expected))
        assert kept[index]["label"] == train[index]["label"]


def test_what_memory_has_no_room_for_or_has_different_sizes_is_not_held(folder, tmp_path):
    train = open_images(folder).splits["train"]
    assert load_images(train, limit=20 * 6 * 8 * 3 - 1) is None
    assert load_images(train, limit=20 * 6 * 8 * 3) is not None
    write_image(class_folders(tmp_path) / "cat" / "more.png", pixels(0, 5, 5))
    assert load_images(open_images(tmp_path, holdout=0.1).splits["train"]) is None


@pytest.mark.parametrize("rows", [3, 6, 7])
def test_an_evaluation_has_every_picture_once_and_the_rest_weighs_nothing(folder, rows):
    pictures = open_images(folder).splits["test"].take(np.array([1, 0, 1, 0, 1, 1, 0]) % 2)
    batches = list(each_image_once(pictures, Resize(size=8), rows=rows, collate=ImageRows(), normalise=NORMALISE))
    assert {len(batch["labels"]) for batch in batches} == {rows}
    weights = np.concatenate([batch["weights"] for batch in batches])
    labels = np.concatenate([batch["labels"] for batch in batches])
    assert weights.sum() == 7
    assert labels[weights > 0].tolist() == pictures["label"].tolist()
    again = list(each_image_once(pictures, Resize(size=8), rows=rows, collate=ImageRows(), normalise=NORMALISE))
    assert_same(batches, again)


@pytest.mark.parametrize("read", ["stream", "hold", "once"])
def test_a_damaged_picture_among_others_is_named_when_it_comes(tmp_path, read):
    root = class_folders(tmp_path / "train", count=6).parent
    class_folders(root / "val")
    class_folders(root / "test")
    path = root / "train" / "dog" / "3.png"
    path.write_bytes(path.read_bytes()[:-30])
    train = open_images(root).splits["train"]
    with pytest.raises(ValueError, match=r"train/dog/3\.png is a damaged") as refused:  # noqa: PT012
        if read == "stream":
            with contextlib.closing(
                ImageStream(DecodedRows(shuffled(train, seed=0), ImageRows()), rows=4, seed=0)
            ) as it:
                list(islice(it, 3))
        elif read == "hold":
            load_images(train)
        else:
            list(each_image_once(train, rows=4, collate=ImageRows(), normalise=NORMALISE))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("read", ["stream", "hold", "once", "scenes"])
def test_a_picture_that_a_transform_refuses_is_named_once(tmp_path, read):
    root = coco_folder(tmp_path) if read == "scenes" else class_folders(tmp_path / "train").parent
    path = root / ("train2017/2.png" if read == "scenes" else "train/dog/3.png")
    write_image(path, np.zeros((1, 20_000, 3), np.uint8))
    if read == "scenes":
        said = coco()
        said["images"][2] |= {"width": 20_000, "height": 1}
        said["annotations"] = [each for each in said["annotations"] if each["image_id"] != 12]
        (root / "annotations/instances_train2017.json").write_text(json.dumps(said))
    pictures, large = open_images(root, holdout=0.01).splits["train"], Resize(size=224)
    with pytest.raises(ValueError, match="a resized image must have at most") as refused:  # noqa: PT012
        if read == "hold":
            load_images(pictures, large)
        elif read == "once":
            list(each_image_once(pictures, large, rows=4, collate=ImageRows()))
        else:
            collate = SceneRows(size=400) if read == "scenes" else ImageRows()
            rows = DecodedRows(shuffled(pictures, large, seed=0), collate)
            with contextlib.closing(ImageStream(rows, rows=2, seed=0)) as batches:
                list(islice(batches, 8))
    rule = "a resized image must have at most 89,478,485 pixels, got 4480000 × 224 of 20000 × 1"
    assert str(refused.value) == f"{path}: {rule}"


def test_mixed_rows_stay_together_in_a_process(folder):
    with pytest.raises(ValueError, match="twice the processes, for rows are mixed two by two, got 6 rows, 2 processes"):
        ImageStream(held(folder), *AUGMENT, rows=6, seed=0, pairs=True, process_count=2)


def test_grey_pictures_are_held_as_they_are(tmp_path):
    train = open_images(idx_folder(tmp_path)).splits["train"]
    assert load_images(train) is train
    batch = take(ImageStream(InMemoryRows(train, 0), ShiftFlip(), rows=4, seed=0), 1)[0]
    assert batch["inputs"]["images"].shape == (4, 4, 5, 1)


def test_what_pictures_are_is_part_of_the_position(folder):
    train = load_images(open_images(folder).splits["train"])
    other = labelled_images(InMemoryImages(train["image"].pixels ^ 1), train["label"])
    with pytest.raises(ValueError, match="data: saved"):
        ImageStream(InMemoryRows(other, 0), rows=4, seed=0).set_state(
            ImageStream(InMemoryRows(train, 0), rows=4, seed=0).get_state()
        )
