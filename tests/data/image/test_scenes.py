"""Generated scenes: boxes are where the shapes are, and a scene is the same wherever it is drawn."""

from dataclasses import replace

import numpy as np
import pytest

from flax_transformer.data.synthetic import SHAPES, SceneData, ShapeScenes, draw_shape

FEW = ShapeScenes(train=6, held_out=2, size=48)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size", [(6, 6), (7, 12), (13, 8), (20, 7)])
def test_a_shape_touches_all_sides_of_its_box_and_differs_from_others(name, size):
    shape = draw_shape(name, *size)
    assert shape.shape == size
    assert all(side.any() for side in (shape[0], shape[-1], shape[:, 0], shape[:, -1]))
    assert all((shape != draw_shape(other, *size)).any() for other in SHAPES if other != name)


def test_boxes_are_those_of_what_is_drawn():
    for number in range(20):
        scenes = replace(FEW, noise=0.0)
        pixels, objects = np.asarray(scenes.draw(number)).astype(int), scenes.layout(number)
        left_over = np.ones(pixels.shape[:2], bool)
        for left, top, right, bottom in objects.boxes.astype(int).tolist():
            part = left_over[top:bottom, left:right]
            assert part.all()  # no two overlap
            part[:] = False
        ground = pixels[left_over][0]
        assert (pixels[left_over] == ground).all()
        for (left, top, right, bottom), label in zip(objects.boxes.astype(int).tolist(), objects.classes, strict=True):
            drawn = (pixels[top:bottom, left:right] != ground).any(-1)
            np.testing.assert_array_equal(drawn, draw_shape(SHAPES[label], bottom - top, right - left))


def test_a_scene_is_the_same_whatever_there_is_besides():
    here, there = FEW.open(), replace(FEW, train=3, held_out=4).open()
    for number, (split, index) in enumerate([("train", 0), ("train", 2), ("validation", 0)]):
        one, other = here.splits["train"], there.splits[split]
        place = (0, 2, 3)[number]
        assert int(one["id"][place]) == int(other["id"][index])
        np.testing.assert_array_equal(np.asarray(one[place]["image"]), np.asarray(other[index]["image"]))
        np.testing.assert_array_equal(one[place]["boxes"], other[index]["boxes"])
    every = np.concatenate([each["id"] for each in here.splits.values()])
    assert sorted(every) == list(range(10))
    other = replace(FEW, scene_seed=1).open().splits["train"]
    assert other.fingerprint != here.splits["train"].fingerprint
    assert (np.asarray(other[0]["image"]) != np.asarray(here.splits["train"][0]["image"])).any()


def test_scenes_are_generated_where_no_folder_is_named(tmp_path):
    assert SceneData(shapes=FEW).open().classes == SHAPES
    with pytest.raises(FileNotFoundError, match="must be a folder of images"):
        SceneData(root=str(tmp_path / "none")).open()


@pytest.mark.parametrize(
    "option", [{"train": 0}, {"objects": 0}, {"smallest": 0.01}, {"largest": 2.0}, {"noise": -1.0}]
)
def test_impossible_scenes_are_refused(option):
    with pytest.raises(ValueError, match=r"scenes need|sides of boxes"):
        ShapeScenes(**option)
