import numpy as np
import PIL.Image
import pytest

from flax_transformer.report.box import COLOURS, draw_boxes


def found(boxes, labels, scores):
    return {"boxes": np.array(boxes, float).reshape(-1, 4), "labels": np.array(labels, int), "scores": np.array(scores)}


def colour(label):
    return tuple(int(COLOURS[label % len(COLOURS)][i : i + 2], 16) for i in (1, 3, 5))


BLACK = np.zeros((600, 800, 3), np.uint8)


def test_a_box_has_its_sides_where_it_is_in_the_colour_of_its_class():
    drawn = np.asarray(draw_boxes(BLACK, found([[100, 200, 300, 500]], [1], [0.9])))
    assert drawn.shape == BLACK.shape
    for y, x in ((200, 200), (500, 200), (350, 100), (350, 300)):
        assert tuple(drawn[y, x]) == colour(1)
    assert not drawn[350, 200].any()
    assert not BLACK.any()


def test_the_surest_is_on_top():
    drawn = np.asarray(draw_boxes(BLACK, found([[100, 200, 300, 500]] * 2, [0, 2], [0.9, 0.3])))
    assert tuple(drawn[350, 100]) == colour(0)


def test_a_small_picture_is_drawn_larger_with_its_boxes():
    image = PIL.Image.fromarray(np.arange(60 * 40 * 3, dtype=np.uint8).reshape(40, 60, 3))
    drawn = np.asarray(draw_boxes(image, found([[10, 10, 50, 30]], [0], [0.5])))
    assert drawn.shape == (320, 480, 3)
    assert tuple(drawn[160, 80]) == colour(0)
    np.testing.assert_array_equal(drawn[316, ::8], np.asarray(image)[39])


@pytest.mark.parametrize("box", [[-50, -50, 900, 700], [790, 590, 800, 600], [300, 200, 100, 100], [5, 5, 5, 5]])
def test_boxes_at_and_beyond_the_edges_keep_their_captions_within_the_picture(box):
    drawn = np.asarray(draw_boxes(BLACK, found([box], [1], [0.5]), ["cat", "red blood cell"]))
    assert drawn.shape == BLACK.shape
    assert (drawn == colour(1)).all(-1).sum() > 1000


def test_what_is_there_is_thin_and_white_and_nothing_found_is_no_error():
    truth = {"boxes": np.array([[100.0, 100, 200, 200]])}
    drawn = np.asarray(draw_boxes(BLACK, found([], [], []), truth=truth))
    assert tuple(drawn[150, 100]) == (255, 255, 255)
    assert drawn.any(-1).sum() < 1000
