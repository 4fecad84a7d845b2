"""A short fingerprint of the images of a split, stored with what was measured on them."""

import os
from hashlib import blake2b

import torch

from .dataset import FileSplit, MapSplit, MemorySplit

LOOKED_AT = 16  # images of a MapSplit: reading all would take as long as evaluating


def fingerprint(split: MemorySplit | FileSplit | MapSplit) -> str:
    """The same for the same images and labels in the same order.

    Images in memory count with every byte. Files count with their names inside the folder they share, which may lie anywhere,
    their sizes and times of change. Images that something else keeps count with their keys and the pixels of a few.
    """
    found = blake2b(split.labels.numpy().tobytes(), digest_size=8)
    if isinstance(split, MemorySplit):
        found.update(repr(tuple(split.images.shape)).encode())
        found.update(split.images.reshape(-1).numpy().data)
    elif isinstance(split, FileSplit):
        paths = [os.path.abspath(path) for path in split.paths]  # noqa: PTH100  (as strings, which counts for a million)
        start = len(os.path.commonpath([os.path.dirname(path) for path in paths]))  # noqa: PTH120
        for path in paths:
            found.update(f"{path[start:]} {_state(path)}\n".encode())
    else:
        for key in split.keys:
            found.update(f"{key}\n".encode())
        for place in torch.linspace(0, len(split) - 1, min(LOOKED_AT, len(split))).long().tolist():
            found.update(_pixels(split, place))
    return found.hexdigest()


def _state(path: str) -> tuple[int, int] | None:
    """Size and time of change; None for a file that is not there, which is reported when it is read."""
    try:
        stat = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _pixels(split: MapSplit, place: int) -> bytes:
    try:
        return split.read(split.keys[place]).tobytes()
    except ValueError as error:  # an image that cannot be read counts by the reason
        return str(error).encode()
