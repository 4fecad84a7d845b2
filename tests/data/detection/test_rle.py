"""Run lengths: both spellings, against a plain loop and against the package."""

import numpy as np
import pytest
from faster_coco_eval import mask as package

from dynavit.data.detection.rle import area, counts_of, decode, encode, from_text, to_text


def loop_counts(mask):
    """Run lengths of the columns one after the other, zeros first."""
    counts, value, run = [], False, 0
    for column in range(mask.shape[1]):
        for row in range(mask.shape[0]):
            if mask[row, column] != value:
                counts.append(run)
                value, run = not value, 0
            run += 1
    return [*counts, run]


def loop_text(counts):
    """One number after the other, five bits after the other."""
    text = ""
    for place, count in enumerate(counts):
        value = count - counts[place - 2] if place > 2 else count
        while True:
            bits, value = value & 31, value >> 5
            more = value != (-1 if bits & 16 else 0)
            text += chr(48 + bits + 32 * more)
            if not more:
                break
    return text


def masks():
    random = np.random.default_rng(0)
    yield np.zeros((4, 7), bool)
    yield np.ones((4, 7), bool)
    yield np.eye(9, dtype=bool)
    for height, width, share in ((1, 1, 0.5), (13, 5, 0.5), (40, 60, 0.02), (7, 28, 0.9), (1, 300, 0.5), (300, 1, 0.5)):
        yield random.random((height, width)) < share
    large = np.zeros((150, 180), bool)  # numbers of several letters, also negative differences
    large[20:130, 5:170] = True
    large[60:62, 90] = False
    yield large


@pytest.mark.parametrize("mask", list(masks()), ids=lambda mask: "x".join(map(str, mask.shape)))
def test_encoding_is_the_loops_and_the_packages(mask):
    found = encode(mask)
    assert found["size"] == list(mask.shape)
    assert counts_of(found).tolist() == loop_counts(mask)
    assert found["counts"] == loop_text(loop_counts(mask))
    theirs = package.encode(np.asfortranarray(mask[..., None], np.uint8))[0]["counts"]
    assert found["counts"] == (theirs.decode() if isinstance(theirs, bytes) else theirs)


@pytest.mark.parametrize("mask", list(masks()), ids=lambda mask: "x".join(map(str, mask.shape)))
def test_decoding_undoes_every_spelling(mask):
    text = encode(mask)
    for counts in (text["counts"], text["counts"].encode(), loop_counts(mask)):
        assert (decode({"size": mask.shape, "counts": counts}) == mask).all()
    assert area(text) == mask.sum()


def test_text_of_any_numbers():
    numbers = np.random.default_rng(1).integers(0, 2**31, 500)
    assert (from_text(to_text(numbers)) == numbers).all()


@pytest.mark.parametrize(
    ("rle", "reason"),
    [
        ({"size": [2, 3], "counts": [2, 3]}, "5 pixels in all for a mask of 2 x 3"),
        ({"size": [2, 3], "counts": [8, -2]}, "for a mask"),
        ({"size": [2, 3], "counts": "é"}, "none of theirs"),
        ({"size": [2, 3], "counts": " "}, "none of theirs"),
        ({"size": [2, 3], "counts": "oo"}, "in the middle of a number"),
        ({"size": [2, 3], "counts": "oooooooooo1"}, "longer than any image"),
    ],
)
def test_wrong_run_lengths_are_named(rle, reason):
    with pytest.raises(ValueError, match=reason):
        decode(rle)
