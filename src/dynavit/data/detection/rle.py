"""Masks as run lengths, in COCO's two spellings. Needs numpy alone.

A mask (height, width) is read column by column, and the lengths of its runs are written down, beginning with a run of zeros
that may be empty: {"size": [height, width], "counts": ...}. The counts are a list of numbers, or a text of six-bit letters.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Counts = NDArray[np.int64]
Rle = dict[str, Any]

_FIRST = 48  # the letter of 0
_BITS, _MORE, _SIGN = 5, 32, 16  # of a letter: bits of the number, the flag "goes on", the sign in the last one
_MOST_LETTERS = 7  # 34 bits and a sign: more pixels than any image has


def encode(mask: Mask) -> Rle:
    """A mask (h, w) -> run lengths whose counts are a text.

    >>> encode(np.array([[0, 1, 1], [0, 1, 0]], bool))
    {'size': [2, 3], 'counts': '231'}
    """
    flat = np.asarray(mask, bool).flatten(order="F")
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(np.concatenate([[0], changes, [len(flat)]])).astype(np.int64)
    if len(flat) and flat[0]:
        counts = np.concatenate([np.zeros(1, np.int64), counts])
    return {"size": list(mask.shape), "counts": to_text(counts)}


def decode(rle: Mapping[str, Any]) -> Mask:
    """Run lengths in either spelling -> a mask (h, w); ValueError where they do not fill it exactly."""
    height, width = rle["size"]
    counts = counts_of(rle)
    if (counts < 0).any() or counts.sum() != height * width:
        raise ValueError(f"run lengths of {int(counts.sum())} pixels in all for a mask of {height} x {width}")
    ones = np.arange(len(counts)) % 2 == 1
    return np.repeat(ones, counts).reshape(width, height).T


def area(rle: Mapping[str, Any]) -> int:
    """Pixels of the mask."""
    return int(counts_of(rle)[1::2].sum())


def counts_of(rle: Mapping[str, Any]) -> Counts:
    """The run lengths in either spelling."""
    counts = rle["counts"]
    if isinstance(counts, str | bytes):
        return from_text(counts)
    try:
        numbers = np.asarray(counts, np.float64)  # exact below 2**53
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"run lengths are a text or a list of whole numbers, not {counts!r:.40}") from error
    if numbers.ndim != 1 or (numbers % 1 != 0).any() or (abs(numbers) >= 2**53).any():
        raise ValueError(f"run lengths are a text or a list of whole numbers, not {counts!r:.40}")
    return numbers.astype(np.int64)


# ---- Counts as a text: from the third on, differences to the one before the last; five bits to a letter, the lowest first


def to_text(counts: Counts) -> str:
    values = counts.astype(np.int64)
    values[3:] -= counts[1:-2]
    limits = 1 << (_BITS * np.arange(1, _MOST_LETTERS + 1) - 1)
    letters = 1 + ((values[:, None] < -limits) | (values[:, None] >= limits)).sum(1)
    place = np.arange(_MOST_LETTERS)
    bits = (values[:, None] >> (_BITS * place)) & (_MORE - 1)
    goes_on = place + 1 < letters[:, None]
    return (bits + _MORE * goes_on + _FIRST)[place < letters[:, None]].astype(np.uint8).tobytes().decode()


def from_text(text: str | bytes) -> Counts:
    """ValueError for letters that no encoder writes."""
    try:
        raw = text.encode("ascii") if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise ValueError("run lengths hold a letter that is none of theirs") from error
    codes = np.frombuffer(raw, np.uint8).astype(np.int64) - _FIRST
    if not len(codes):
        return np.zeros(0, np.int64)
    last = (codes & _MORE) == 0
    if codes.min() < 0 or codes.max() >= 2 * _MORE or not last[-1]:
        raise ValueError("run lengths hold a letter that is none of theirs, or end in the middle of a number")
    starts = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1])
    lengths = np.diff(np.concatenate([starts, [len(codes)]]))
    if lengths.max() > _MOST_LETTERS:
        raise ValueError("run lengths hold a number that is longer than any image")
    place = np.arange(len(codes)) - np.repeat(starts, lengths)
    values = np.add.reduceat((codes & (_MORE - 1)) << (_BITS * place), starts)
    values -= np.where(codes[starts + lengths - 1] & _SIGN, np.int64(1) << (_BITS * lengths), 0)
    values[1::2] = values[1::2].cumsum()
    values[2::2] = values[2::2].cumsum()
    return values
