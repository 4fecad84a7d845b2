"""Options of `--loading` on a set of images."""

import pytest
import torch

from dynavit.data.config import DataConfig
from dynavit.data.configured import configured
from dynavit.data.dataset import DataSet, MemorySplit


def data_set(**options):
    split = MemorySplit(torch.zeros(20, 1, 8, 8, dtype=torch.uint8), torch.arange(20) % 2)
    data = DataSet("x", {"train": split, "test": split}, ["a", "b"], split.size, (0.5,), (0.5,))
    return configured(data, DataConfig(**options))


@pytest.mark.parametrize(
    ("size", "note"),
    [
        (None, None),
        (8, None),
        (10, "images of 8x8 pixels are padded to 10x10"),
        (32, "images of 8x8 pixels are resized to 32x32"),
        (4, "images of 8x8 pixels are resized to 4x4"),
    ],
)
def test_the_size_of_a_data_set(size, note):
    data = data_set(image_size=size)
    assert data.image_size == (size or 8, size or 8)
    assert data.notes[1:] == ((note,) if note else ())
    assert data.splits["train"].images.shape[-2:] == (8, 8)


def test_a_size_is_positive():
    for size in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            data_set(image_size=size)


def test_twice_does_no_harm():
    config = DataConfig(image_size=10, val_fraction=0.2, limit=6)
    once = data_set(image_size=10, val_fraction=0.2, limit=6)
    again = configured(once, config)
    assert len(once.notes) == 3 and once.notes == again.notes and once.image_size == again.image_size
    assert {name: len(split) for name, split in once.splits.items()} == {"train": 6, "val": 4, "test": 20}
    for name, split in once.splits.items():
        assert torch.equal(split.labels, again.splits[name].labels)
