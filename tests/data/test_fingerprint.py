"""Images are known again, and others are told apart."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from data.image_files import one_colour, write_folder
from dynavit.data.config import DataConfig
from dynavit.data.dataset import FileSplit, MapSplit, MemorySplit
from dynavit.data.fingerprint import fingerprint
from dynavit.data.folder import open_folder

IMAGES, LABELS = torch.arange(48, dtype=torch.uint8).view(4, 1, 3, 4), torch.tensor([0, 1, 0, 1])


def other(tensor, place, value):
    changed = tensor.clone()
    changed.view(-1)[place] = value
    return changed


def test_every_byte_in_memory_counts():
    known = fingerprint(MemorySplit(IMAGES, LABELS))
    assert fingerprint(MemorySplit(IMAGES.clone(), LABELS.clone())) == known
    transposed = MemorySplit(IMAGES.transpose(2, 3).contiguous().transpose(2, 3), LABELS)
    assert fingerprint(transposed) == known, "how they lie in memory does not count"
    others = [
        MemorySplit(other(IMAGES, -1, 0), LABELS),
        MemorySplit(IMAGES, other(LABELS, 0, 1)),
        MemorySplit(IMAGES.view(4, 1, 4, 3), LABELS),
        MemorySplit(IMAGES, LABELS).subset(torch.tensor([0, 1, 2])),
        MemorySplit(IMAGES, LABELS).subset(torch.tensor([2, 1, 0, 3])),  # the same labels
    ]
    assert len({known, *map(fingerprint, others)}) == 1 + len(others)


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "data", {"val": {"cat": 2, "dog": 2}})


def opened(folder: Path) -> FileSplit:
    split = open_folder(folder, DataConfig()).splits["val"]
    assert isinstance(split, FileSplit)
    return split


def test_a_folder_may_lie_anywhere(folder, tmp_path, monkeypatch):
    known = fingerprint(opened(folder))
    assert fingerprint(opened(shutil.copytree(folder, tmp_path / "elsewhere"))) == known  # copytree keeps times
    monkeypatch.chdir(tmp_path)
    assert fingerprint(opened(Path("data"))) == known


def test_files_count_with_name_size_and_time(folder):
    file = folder / "val/cat/1.png"
    before = file.stat()
    seen = [fingerprint(opened(folder))]
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1000))
    seen.append(fingerprint(opened(folder)))
    file.write_bytes(file.read_bytes() + b"more")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    seen.append(fingerprint(opened(folder)))
    file.rename(folder / "val/cat/2.png")
    seen.append(fingerprint(opened(folder)))
    split = opened(folder)
    (folder / "val/cat/2.png").unlink()  # only the loader says that it is missing
    seen.append(fingerprint(split))
    assert len(set(seen)) == 5


def test_what_something_else_keeps():
    keys, labels = [0, 1, 2, 3], torch.tensor([0, 1, 0, 1])  # number 2 cannot be read
    known = fingerprint(MapSplit(one_colour, keys, labels))
    assert fingerprint(MapSplit(one_colour, list(keys), labels)) == known
    others = [
        MapSplit(one_colour, [0, 1, 2, 5], labels),
        MapSplit(lambda key: one_colour(3 - key), keys, labels),
        MapSplit(one_colour, keys, labels.flip(0)),
    ]
    assert len({known, *map(fingerprint, others)}) == 1 + len(others)
