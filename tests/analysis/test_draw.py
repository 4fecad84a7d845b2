"""Pictures: what is drawn where, in which colour, and what is left out."""

import numpy as np
import pytest
from PIL import Image

from dynavit.analysis.draw import LARGEST, PAPER, READABLE, VEIL, colour_of, contact_sheet, cut_out, draw_detections
from dynavit.data.detection.rle import encode

CLASSES = ["cat", "dog"]
GREY = (100, 100, 100)


def picture(width=600, height=500):
    return Image.new("RGB", (width, height), GREY)


def result(*rows, masks=None):
    """Rows of (box, label, score)."""
    return {
        "boxes": np.array([row[0] for row in rows], float).reshape(-1, 4),
        "labels": np.array([row[1] for row in rows], int),
        "scores": np.array([row[2] for row in rows], float),
        "masks": masks,
    }


def changed(drawn, plain=GREY):
    return (np.asarray(drawn) != np.array(plain)).any(-1)


def test_a_box_has_the_colour_of_its_class_and_lies_where_it_is():
    drawn = np.asarray(draw_detections(picture(), result(([100, 200, 300, 400], 1, 0.9)), CLASSES))
    assert drawn.shape == (500, 600, 3)
    for row, column in ((300, 100), (300, 300), (400, 200)):  # left, right, bottom; a name may stand above
        assert tuple(drawn[row, column]) == colour_of("dog")
    assert tuple(drawn[300, 200]) == GREY and tuple(drawn[300, 90]) == GREY
    rows = np.flatnonzero((drawn == np.array(colour_of("dog"))).all(-1).any(1))
    assert rows.min() < 200  # the name's ground


def test_less_sure_ones_are_left_out():
    found = result(([100, 200, 300, 400], 1, 0.49))
    assert not changed(draw_detections(picture(), found, CLASSES)).any()
    assert changed(draw_detections(picture(), found, CLASSES, score=0.4)).any()
    assert not changed(draw_detections(picture(), result(), CLASSES)).any()


def test_masks_are_a_veil_with_a_border():
    mask = np.zeros((500, 600), bool)
    mask[220:380, 120:280] = True
    drawn = np.asarray(draw_detections(picture(), result(([100, 200, 300, 400], 0, 0.9), masks=[encode(mask)]), CLASSES))
    inside = (1 - VEIL) * np.array(GREY) + VEIL * np.array(colour_of("cat"))
    assert np.abs(drawn[300, 200] - inside).max() <= 1
    assert tuple(drawn[220, 200]) == colour_of("cat") and tuple(drawn[379, 200]) == colour_of("cat")
    assert tuple(drawn[215, 200]) == GREY


def test_small_pictures_are_enlarged_with_their_boxes():
    drawn = np.asarray(draw_detections(picture(60, 48), result(([10, 20, 30, 40], 1, 0.9)), CLASSES))
    times = READABLE / 60
    assert drawn.shape == (round(48 * times), READABLE, 3)
    assert tuple(drawn[round(30 * times), round(10 * times)]) == colour_of("dog")


def test_large_photographs_are_made_smaller_with_their_boxes():
    drawn = np.asarray(draw_detections(picture(4000, 3000), result(([1000, 2000, 3000, 2600], 1, 0.9)), CLASSES))
    assert drawn.shape == (1500, LARGEST, 3) and tuple(drawn[1200, 500]) == colour_of("dog")


def test_truth_stands_at_the_left_and_is_dashed():
    found, truth = result(([100, 200, 300, 400], 1, 0.9)), {"boxes": [[100, 200, 300, 400]], "labels": [0], "masks": None}
    truth["crowd_boxes"] = [[400, 50, 500, 100]]
    drawn = np.asarray(draw_detections(picture(), found, CLASSES, truth=truth))
    assert drawn.shape[1] > 2 * 600 and drawn.shape[0] > 500
    left, right = drawn[-500:, :600], drawn[-500:, -600:]
    edge = (left[220:380, 100] == np.array(colour_of("cat"))).all(-1)
    assert 0.3 < edge.mean() < 0.8  # dashes
    assert (right[220:380, 100] == np.array(colour_of("dog"))).all()
    assert changed(left)[50, 400:500].any() and not changed(right)[50, 400:500].any()  # the crowd


def test_names_do_not_cover_each_other():
    """The same box three times has three names, below each other."""
    one = np.asarray(draw_detections(picture(), result(([100, 200, 300, 400], 0, 0.9)), CLASSES))
    three = np.asarray(draw_detections(picture(), result(*[([100, 200, 300, 400], 0, 0.9)] * 3), CLASSES))

    def ground(drawn):
        return (drawn[150:300, 105:180] == np.array(colour_of("cat"))).all(-1).sum()

    assert ground(three) > 2 * ground(one)


def test_boxes_beyond_the_border_are_drawn_as_far_as_they_go():
    found = result(
        ([-50, -50, 30, 30], 0, 0.9), ([590, 490, 700, 700], 1, 0.9), ([50, 60, 50, 60], 1, 0.9), ([80, 90, 70, 60], 1, 0.9)
    )
    assert draw_detections(picture(), found, CLASSES).size == (600, 500)


def test_colours_belong_to_names():
    colours = [colour_of(name) for name in ("person", "dog", "cat", "car", "disc", "square", "triangle", "ring")]
    assert len(set(colours)) == len(colours)
    assert colour_of("person") == colour_of("person") and all(max(colour) > 150 for colour in colours)


def test_a_contact_sheet_has_rows_of_equal_height():
    pictures = [Image.new("RGB", size, (200, 0, 0)) for size in ((400, 200), (200, 200), (100, 300))]
    sheet = np.asarray(contact_sheet(pictures, ["a", "b", "c"], columns=2, width=900))
    assert sheet.shape[1] == 900
    red = (sheet == np.array([200, 0, 0])).all(-1)
    first, *others = np.flatnonzero(red.any(0))
    assert first == 14
    heights = [red[:, column].sum() for column in (20, 880)]
    assert abs((900 - 3 * 14) / 3 - red[:300, 880].sum()) <= 1 and heights[0] > heights[1]
    assert tuple(sheet[0, 0]) == PAPER and len(others) > 500
    with pytest.raises(ValueError, match="at least one picture"):
        contact_sheet([])


def test_a_cut_shows_the_box_and_its_surroundings():
    image = picture()
    image.paste((255, 0, 0), (280, 180, 320, 220))
    cell = np.asarray(cut_out(image, (280, 180, 320, 220), (0, 0, 255), side=150, other=(275, 175, 315, 215)))
    assert cell.shape == (150, 150, 3) and tuple(cell[75, 75]) == (255, 0, 0)
    assert (cell == np.array([0, 0, 255])).all(-1).any() and tuple(cell[2, 2]) == GREY
    corner = np.asarray(cut_out(image, (0, 0, 20, 20), (0, 0, 255)))
    assert tuple(corner[0, 0]) == PAPER
