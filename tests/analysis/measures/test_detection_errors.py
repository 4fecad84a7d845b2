"""Every sort of detection by hand, and overlaps by a loop."""

import numpy as np
import pytest

from dynavit.analysis.measures.detection_errors import judge, overlap, share_inside

TRUTH = {"boxes": [[0, 0, 10, 10], [20, 0, 30, 10], [50, 50, 90, 90]], "labels": [0, 1, 0], "crowd_boxes": [[100, 0, 200, 50]]}


def result(*rows):
    """Rows of (box, label, score)."""
    boxes, labels, scores = zip(*rows, strict=True) if rows else ((), (), ())
    return {"boxes": list(boxes), "labels": list(labels), "scores": list(scores)}


@pytest.mark.parametrize(
    ("row", "sort", "partner"),
    [
        (([0, 0, 10, 10], 0, 0.9), "right", 0),
        (([0, 0, 10, 5], 0, 0.9), "right", 0),  # an overlap of a half is enough
        (([0, 0, 10, 4.9], 0, 0.9), "badly placed", 0),
        (([0, 0, 10, 10], 1, 0.9), "wrong class", 0),
        (([0, 0, 10, 4], 1, 0.9), "background", -1),
        (([12, 12, 18, 18], 0, 0.9), "background", -1),
        (([110, 10, 150, 40], 0, 0.9), "crowd", -1),
    ],
)
def test_sorts(row, sort, partner):
    found = judge(result(row), TRUTH)
    assert list(found.sorts) == [sort] and list(found.partner) == [partner]
    assert set(found.missed) == {0, 1, 2} - ({partner} if sort == "right" else set())


def test_the_surest_is_right_and_others_repeat_it():
    found = judge(result(([0, 0, 10, 9], 0, 0.6), ([0, 0, 10, 10], 0, 0.5), ([0, 0, 9, 10], 0, 0.8)), TRUTH)
    assert list(found.sorts) == ["repeated", "repeated", "right"] and list(found.missed) == [1, 2]


def test_an_object_that_is_taken_leaves_room_for_its_neighbour():
    truth = {"boxes": [[0, 0, 10, 10], [0, 2, 10, 12]], "labels": [0, 0]}
    found = judge(result(([0, 0, 10, 10], 0, 0.9), ([0, 0, 10, 10], 0, 0.8)), truth)
    assert list(found.sorts) == ["right", "right"] and list(found.partner) == [0, 1] and not found.missed


def test_nothing_anywhere():
    assert list(judge(result(), TRUTH).missed) == [0, 1, 2]
    nothing = {"boxes": [], "labels": []}
    assert list(judge(result(([0, 0, 1, 1], 0, 0.9)), nothing).sorts) == ["background"]
    assert judge(result(), nothing).sorts == []


def test_overlaps_by_a_loop():
    random = np.random.default_rng(0)
    corners = random.uniform(0, 50, (7, 2))
    boxes = np.concatenate([corners, corners + random.uniform(0, 40, (7, 2))], 1)
    boxes[3, 2:] = boxes[3, :2]  # of no area
    for i, (a, b, c, d) in enumerate(boxes):
        for j, (e, f, g, h) in enumerate(boxes):
            common = max(0, min(c, g) - max(a, e)) * max(0, min(d, h) - max(b, f))
            own, union = (c - a) * (d - b), (c - a) * (d - b) + (g - e) * (h - f) - common
            assert overlap(boxes, boxes)[i, j] == pytest.approx(common / union if union else 0)
            assert share_inside(boxes, boxes)[i, j] == pytest.approx(common / own if own else 0)
