"""Stored pictures: small, in JSON, and with boxes and masks in their own pixels."""

import json

import numpy as np
import pytest
from PIL import Image

from dynavit.analysis.detection_examples import picture_of, stored_example
from dynavit.data.detection.rle import decode, encode


def test_everything_is_in_pixels_of_the_small_picture():
    mask = np.zeros((500, 1000), bool)
    mask[100:300, 200:600] = True
    truth = {
        "boxes": [[200, 100, 600, 300]],
        "labels": np.array([2]),
        "masks": [encode(mask)],
        "crowd_boxes": [[0, 0, 100, 50]],
    }
    found = {
        "boxes": np.array([[200, 100, 600, 300], [0, 0, 9, 9]]),
        "scores": np.array([0.9, 0.1]),
        "labels": [1, 1],
        "masks": None,
    }
    stored = json.loads(json.dumps(stored_example("a.png", Image.new("RGB", (1000, 500), (200, 10, 10)), found, truth)))
    picture = picture_of(stored)
    assert picture.size == (480, 240) and np.abs(np.array(picture.getpixel((9, 9))) - [200, 10, 10]).max() < 8
    assert stored["truth"]["boxes"] == [[96, 48, 288, 144]] and stored["truth"]["crowd_boxes"] == [[0, 0, 48, 24]]
    small = decode(stored["truth"]["masks"][0])
    assert small.shape == (240, 480) and small[48:144, 96:288].all() and small.sum() == 96 * 192
    assert stored["found"]["scores"] == [0.9] and stored["found"]["labels"] == [1] and stored["found"]["masks"] is None


def test_addresses_elsewhere_are_not_fetched():
    with pytest.raises(ValueError, match="a data address"):
        picture_of({"image": "https://example.org/a.png"})
