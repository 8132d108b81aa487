"""What is changed in images: sizes, boxes that go along, random numbers, labels."""

import math

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.data.image import (
    CenterCrop,
    ColourJitter,
    Draw,
    Erase,
    Flip,
    ImageRows,
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
)
from flax_transformer.data.image.colour import OPERATIONS
from flax_transformer.data.image.geometry import flipped
from tests.data.image.image_files import pixels

sides = st.integers(1, 60)


def rng(seed=0):
    return np.random.default_rng(seed)


def example(height=20, width=30, seed=0, count=6, channels=3):
    """An image with boxes of at least 1 pixel each way, inside of it."""
    random = rng(seed)
    low = random.uniform(0, [width - 1, height - 1], (count, 2))
    high = random.uniform(low + 1, [width, height])
    array = pixels(seed, height, width, channels)
    return {
        "image": PIL.Image.fromarray(array[..., 0] if channels == 1 else array),
        "boxes": np.concatenate([low, high], 1).astype(np.float32),
        "classes": np.arange(count, dtype=np.int32),
        "number": seed,
        "name": f"{seed}.png",
        "size": np.array([height, width], np.int32),
    }


def array(made):
    return np.asarray(made["image"])


def draw(rows=8, own=None, seed=0):
    return Draw(rng(seed), rows, np.arange(rows) if own is None else np.array(own))


def batch(rows=8, size=6, channels=3, classes=3):
    images = rng(1).integers(0, 256, (rows, size, size, channels), np.uint8)
    labels = np.arange(rows, dtype=np.int32) % classes
    return {"inputs": {"images": images}, "labels": labels, "weights": np.ones(rows, np.float32)}


GEOMETRY = {
    "shorter side": Resize(size=17),
    "both sides": Resize(size=(9, 31), resample="lanczos"),
    "longest": Resize(size=40, longest=45),
    "one of several": RandomResize(sizes=(8, 16, 24), longest=30),
    "middle": CenterCrop(size=12),
    "middle and more": CenterCrop(size=(50, 3)),
    "rectangle": RandomResizedCrop(size=(14, 10)),
    "part": RandomCrop(least=0.3),
    "mirror": Flip(share=1.0),
    "upside down": Flip(share=1.0, axis="height"),
    "sometimes": RandomApply(transforms=(RandomCrop(), Flip()), share=0.7),
}


@pytest.mark.rotates
@pytest.mark.parametrize("name", GEOMETRY)
@settings(max_examples=15)
@given(height=sides, width=sides, seed=st.integers(0, 9))
def test_boxes_stay_within_the_picture_and_keep_their_classes(name, height, width, seed):
    before = example(height, width, seed)
    after = GEOMETRY[name](before, rng(seed))
    boxes, image = after["boxes"], after["image"]
    assert len(boxes) == len(after["classes"]) <= len(before["boxes"])
    assert (boxes[:, :2] < boxes[:, 2:]).all()
    assert (boxes >= -1e-3).all()
    assert (boxes <= np.array([image.width, image.height] * 2) * (1 + 1e-5)).all()
    assert set(after["classes"]) <= set(before["classes"])


@pytest.mark.parametrize("name", GEOMETRY)
def test_a_box_goes_with_what_is_to_be_seen(name):
    """A white rectangle in a black image is where its box says, to a pixel of what resizing blurs."""
    canvas = np.zeros((60, 90, 3), np.uint8)
    canvas[22:41, 30:62] = 255
    seen = {"image": PIL.Image.fromarray(canvas), "boxes": np.array([[30, 22, 62, 41]], np.float32),
            "classes": np.array([5], np.int32)}  # fmt: skip
    for seed in range(12):
        after = GEOMETRY[name](seen, rng(seed))
        white = array(after)[..., 0] > 127
        if not len(after["boxes"]):
            assert white.sum() <= max(white.shape) * 1.5
            continue
        rows, columns = np.flatnonzero(white.any(1)), np.flatnonzero(white.any(0))
        found = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        np.testing.assert_allclose(after["boxes"][0], found, atol=1.01)


@pytest.mark.rotates
@given(height=sides, width=sides, seed=st.integers(0, 5))
def test_mirroring_twice_changes_nothing(height, width, seed):
    before = example(height, width, seed)
    after = flipped(flipped(before))
    np.testing.assert_array_equal(array(after), array(before))
    np.testing.assert_allclose(after["boxes"], before["boxes"], atol=1e-5)


@pytest.mark.parametrize("resample", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_resized_pixels_are_those_of_pillow(resample):
    before = example()
    filter = getattr(PIL.Image.Resampling, resample.upper())
    after = Resize(size=13, resample=resample)(before, rng())
    np.testing.assert_array_equal(array(after), np.asarray(before["image"].resize((19, 13), filter)))


def test_a_random_rectangle_is_a_crop_that_pillow_resizes():
    before = example()
    transform = RandomResizedCrop(size=8)
    left, top, width, height = transform._draw(30, 20, rng(3))
    crop = before["image"].crop((left, top, left + width, top + height))
    expected = crop.resize((8, 8), PIL.Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(array(transform(before, rng(3))), np.asarray(expected))


@pytest.mark.rotates
@given(height=st.integers(2, 80), width=st.integers(2, 80), seed=st.integers(0, 20))
def test_a_random_rectangle_lies_within_and_has_the_area_and_shape_asked_for(height, width, seed):
    transform = RandomResizedCrop(size=8, area=(0.3, 0.6), aspect=(0.5, 2.0))
    left, top, w, h = transform._draw(width, height, rng(seed))
    assert left >= 0
    assert top >= 0
    assert left + w <= width
    assert top + h <= height
    if min(height, width) > 20:
        slack = 1 / h + 1 / w
        assert 0.3 - slack <= w * h / (width * height) <= 0.6 + slack or max(width / height, height / width) > 2
        assert 0.5 - slack <= w / h <= 2 + 2 * slack


@pytest.mark.rotates
@given(height=sides, width=sides)
def test_the_shorter_side_is_as_long_as_asked_for_and_the_longer_in_proportion(height, width):
    new = Resize(size=24).shape(width, height)
    assert min(new) == 24
    assert abs(max(new) - 24 * max(height, width) / min(height, width)) <= 1
    both = Resize(size=24, longest=30).shape(width, height)
    assert max(both) <= 30


def test_the_middle_of_a_small_picture_is_framed_in_black():
    after = CenterCrop(size=10)({"image": PIL.Image.fromarray(pixels(0, 4, 6))}, rng())
    expected = np.zeros((10, 10, 3), np.uint8)
    expected[3:7, 2:8] = pixels(0, 4, 6)
    np.testing.assert_array_equal(array(after), expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_keep_the_size_and_do_nothing_at_no_strength(name, channels):
    image = example(channels=channels)["image"]
    for strength, sign in ((0.0, 1), (0.5, -1), (1.0, 1)):
        after = OPERATIONS[name](image, strength, sign)
        assert (after.size, after.mode) == (image.size, image.mode)
        if strength == 0.0 and name not in ("autocontrast", "equalize", "invert"):
            np.testing.assert_array_equal(np.asarray(after), np.asarray(image))


def test_operations_at_full_strength_by_hand():
    image = PIL.Image.fromarray(np.array([[10, 100, 127, 128, 200]], np.uint8))
    by_hand = {
        "invert": [245, 155, 128, 127, 55], "solarize": [245, 155, 128, 127, 55], "posterize": [0, 96, 112, 128, 192],
        "solarize_add": [120, 210, 237, 128, 200], "brightness": [19, 190, 241, 243, 255],
    }  # fmt: skip
    for name, expected in by_hand.items():
        assert np.asarray(OPERATIONS[name](image, 1.0, 1)).tolist() == [expected], name
    moved = OPERATIONS["move_x"](PIL.Image.fromarray(np.full((4, 20), 7, np.uint8)), 1.0, 1)
    assert np.asarray(moved)[0].tolist() == [7] * 11 + [128] * 9


@pytest.mark.parametrize(
    "transform", [RandAugment(deviation=0.5, share=0.5), ColourJitter(brightness=0.4, contrast=0.3, saturation=0.2)]
)
def test_the_same_generator_gives_the_same_picture_and_others_another(transform):
    plain = {"image": example()["image"]}
    found = [array(transform(plain, rng(seed))) for seed in (1, 1, 2, 3)]
    np.testing.assert_array_equal(found[0], found[1])
    assert any((found[0] != other).any() for other in found[2:])


def test_operations_that_move_what_is_to_be_seen_take_no_boxes():
    with pytest.raises(ValueError, match="it takes no examples with boxes"):
        RandAugment()(example(), rng())


@pytest.mark.parametrize("channels", [1, 3])
def test_normalised_values_are_by_hand(channels):
    given = batch(rows=2, size=5, channels=channels)
    mean, std = (0.5, 0.4, 0.3)[:channels], (0.2, 0.25, 0.5)[:channels]
    found = Normalise(mean=mean, std=std)(given)["inputs"]["images"]
    expected = (given["inputs"]["images"] / 255 - np.array(mean)) / np.array(std)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-6)


@settings(max_examples=15)
@given(pad=st.integers(0, 5), flip=st.floats(0, 1), seed=st.integers(0, 9))
def test_each_moved_picture_is_a_window_of_the_padded_one(pad, flip, seed):
    given = batch(rows=4, size=5)
    found = ShiftFlip(pad=pad, flip=flip)(given, draw(4, seed=seed))["inputs"]["images"]
    padded = np.pad(given["inputs"]["images"], ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), (1, 2))
    windows = windows.transpose(0, 1, 2, 4, 5, 3).reshape(4, -1, 5, 5, 3)
    for row in range(4):
        every = np.concatenate([windows[row], windows[row][:, :, ::-1]])
        assert (every == found[row]).all((1, 2, 3)).any()


def test_moves_and_mirrors_are_all_drawn_equally_often():
    rows = 6_000
    images = np.zeros((rows, 3, 3, 1), np.uint8)
    images[:, 1, 0] = 1
    given = {"inputs": {"images": images}, "labels": np.zeros(rows, np.int32), "weights": np.ones(rows, np.float32)}
    found = ShiftFlip(pad=1, flip=0.5)(given, draw(rows))["inputs"]["images"][..., 0]
    # The dot is moved out of the image to its side in one of three, else it is in one of six places to either side.
    assert abs(found.any((1, 2)).mean() - 2 / 3) < 0.03
    np.testing.assert_allclose(found.mean(0), [[1 / 18 * 1.0, 1 / 9, 1 / 18]] * 3, atol=0.02)


@pytest.mark.parametrize("options", [{}, {"mixup": 0.0}, {"cutmix": 0.0}])
@settings(max_examples=15)
@given(seed=st.integers(0, 30))
def test_mixed_labels_sum_to_one_and_say_what_the_picture_is_made_of(options, seed):
    rows, given = 8, batch(8, 16, classes=8)
    given["inputs"]["images"] = np.broadcast_to(np.arange(8, dtype=np.float32)[:, None, None, None], (8, 16, 16, 1))
    made = MixupCutmix(classes=8, **options)(given, draw(rows, seed=seed))
    np.testing.assert_allclose(made["labels"].sum(1), 1, atol=1e-6)
    # Every image has its number as its value, so that its mean is that of the numbers in its label.
    np.testing.assert_allclose(made["inputs"]["images"].mean((1, 2, 3)), made["labels"] @ np.arange(8), atol=1e-4)
    assert ((made["labels"] > 0).sum(1) <= 2).all()


def test_mixing_needs_pairs():
    with pytest.raises(ValueError, match="rows that are mixed must be even in number in each process, got 3"):
        MixupCutmix(classes=3)(batch(3), draw(3))


def test_erased_rectangles_are_noise_within_the_area_asked_for():
    given = Normalise(mean=(0.5,) * 3, std=(0.5,) * 3)(batch(200, 20))
    before = given["inputs"]["images"]
    after = Erase(share=0.5, area=(0.1, 0.2))(given, draw(200))["inputs"]["images"]
    changed = (before != after).any(-1)
    chosen = changed.any((1, 2))
    assert 70 < chosen.sum() < 130
    for row in np.flatnonzero(chosen):
        rows, columns = np.flatnonzero(changed[row].any(1)), np.flatnonzero(changed[row].any(0))
        assert changed[row].sum() == len(rows) * len(columns) == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
    shares = changed[chosen].mean((1, 2))
    assert shares.min() > 0.07
    assert shares.max() < 0.24


@pytest.mark.parametrize(
    "augment",
    [
        ShiftFlip(),
        Erase(share=1.0),
        MixupCutmix(classes=3),
        MixupCutmix(classes=3, mixup=0.0),
        Normalise(mean=(0.5,) * 3, std=(1.0,) * 3),
    ],
)
def test_rows_are_changed_alike_whoever_lays_them_out(augment):
    given = batch(8)
    given["inputs"]["images"] = given["inputs"]["images"].astype(
        np.float32 if not isinstance(augment, Normalise) else np.uint8
    )
    whole = augment(given, draw(8))
    for own in ([0, 1, 2, 3], [4, 5, 6, 7], [2, 3]):
        part = {"inputs": {"images": given["inputs"]["images"][own]}, "labels": given["labels"][own]}
        made = augment({**part, "weights": given["weights"][own]}, draw(8, own))
        np.testing.assert_array_equal(made["inputs"]["images"], whole["inputs"]["images"][own])
        np.testing.assert_array_equal(made["labels"], whole["labels"][own])


def test_scenes_are_laid_out_in_the_corner_with_boxes_as_shares():
    small, full = example(4, 6, count=1), example(8, 8, seed=1, count=0)
    small["boxes"][:] = [[1, 1, 4, 3]]
    made = SceneRows(size=8, boxes=2)([small, full, None])
    images, mask, labels = made["inputs"]["images"], made["inputs"]["mask"], made["labels"]
    np.testing.assert_array_equal(images[0, :4, :6], array(small))
    assert not images[0, 4:].any()
    assert mask.sum((1, 2)).tolist() == [24, 64, 0]
    np.testing.assert_allclose(labels["boxes"][0, 0], [2.5 / 6, 2 / 4, 3 / 6, 2 / 4])
    assert labels["weights"].tolist() == [[1, 0], [0, 0], [0, 0]]
    assert made["weights"].tolist() == [1, 1, 0]
    assert labels["sizes"].tolist() == [[4, 6], [8, 8], [1, 1]]
    plain = Normalise(mean=(0.5,) * 3, std=(0.5,) * 3)(made)["inputs"]["images"]
    assert not plain[~mask].any()


def test_scenes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"^0\.png must fit 8 × 8 pixels and 9 boxes, got 30 × 20 and 6"):
        SceneRows(size=8, boxes=9)([example()])
    with pytest.raises(ValueError, match="and 2 boxes, got 30 × 20 and 6"):
        SceneRows(size=40, boxes=2)([example()])


def test_pictures_of_different_sizes_make_no_batch():
    items = [{"image": example(4, 4)["image"], "label": 0}, {"image": example(5, 4)["image"], "label": 1}]
    with pytest.raises(ValueError, match=r"must have one size, got \(4, 4, 3\) and \(5, 4, 3\)"):
        ImageRows()(items)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Resize(size=0), "size must be at least 1 pixel, got 0"),
        (lambda: Resize(size=30, longest=20), "longest goes with a shorter side of at most as much, got 20, 30"),
        (lambda: RandomResize(sizes=()), "sizes must be at least one"),
        (lambda: CenterCrop(size=(3, -1)), r"size must be at least 1 pixel, got \(3, -1\)"),
        (lambda: RandomResizedCrop(size=3, area=(0.0, 1.0)), r"area must be a range in \(0, 1\]"),
        (lambda: RandomCrop(least=1.5), r"least must be in \(0, 1\], got 1.5"),
        (lambda: Flip(share=2.0), r"share must be in \[0, 1\], got 2.0"),
        (lambda: ColourJitter(contrast=-1.0), r"contrast must be in \[0, 1\], got -1.0"),
        (lambda: RandAugment(magnitude=11.0), r"magnitude in \[0, 10\]"),
        (lambda: RandAugment(layers=0), "layers must be at least 1"),
        (lambda: ShiftFlip(pad=-1), "pad must not be negative, got -1"),
        (lambda: Erase(area=(0.5, 0.2)), r"area must be a range in \(0, 1\)"),
        (lambda: MixupCutmix(classes=2, mixup=0.0, cutmix=0.0), "mixup or cutmix must be positive"),
        (lambda: Normalise(mean=(0.5,), std=(0.0,)), "std positive"),
        (lambda: SceneRows(size=3, boxes=0), "boxes must be at least 1, got 0"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_the_door(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_colours_change_by_the_factor_drawn():
    grey = {"image": PIL.Image.fromarray(np.full((4, 4, 3), 100, np.uint8))}
    values = {int(array(ColourJitter(brightness=0.5)(grey, rng(seed)))[0, 0, 0]) for seed in range(200)}
    assert min(values) in range(50, 56)
    assert max(values) in range(145, 151)
    assert math.isclose(np.mean(list(values)), 100, abs_tol=5)


def test_a_thin_picture_is_not_made_a_large_one():
    thin = {"image": PIL.Image.new("L", (1_000_000, 1))}
    with pytest.raises(ValueError, match=r"at most 89,478,485 pixels, got 224000000 × 224 of 1000000 × 1"):
        Resize(size=224)(thin, np.random.default_rng(0))
