"""The embedded digits."""

import hashlib
from pathlib import Path

import pytest
import torch

import dynavit.data
from dynavit.data.config import DataConfig
from dynavit.data.digits import open_digits


def test_the_digits_are_those_of_uci():
    data = open_digits(None, DataConfig())
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 1293, "val": 144, "test": 360}
    labels = torch.cat([split.labels for split in data.splits.values()])
    assert torch.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    images = torch.cat([split.images for split in data.splits.values()])
    assert images.shape == (1797, 1, 8, 8) and images.dtype == torch.uint8
    assert images.unique().tolist() == [round(ink * 255 / 16) for ink in range(17)]
    assert data.classes == list("0123456789")
    assert not data.mirrored


def test_the_test_split_never_changes():
    test = open_digits(None, DataConfig(val_fraction=0.3, split_seed=5, limit=100)).splits["test"]
    content = test.images.numpy().tobytes() + bytes(test.labels.tolist())
    assert hashlib.sha256(content).hexdigest() == "1f998b75162bbf8ac8d2599a8b8dc01bdd561fad07ee4943a7771ebaa5e3a0ba"
    sizes = torch.bincount(test.labels)
    assert sizes.min() >= 35 and sizes.max() <= 37


def test_mean_and_deviation_are_those_of_what_is_trained_on():
    data = open_digits(None, DataConfig(val_fraction=0))
    pixels = data.splits["train"].images.double() / 255
    assert data.mean == (pytest.approx(pixels.mean().item(), abs=5e-5),)
    assert data.std == (pytest.approx(pixels.std().item(), abs=5e-5),)


def test_the_source_is_named_beside_the_numbers():
    text = Path(dynavit.data.__file__).with_name("digits.txt").read_text()
    assert "Alpaydin" in text and "CC BY 4.0" in text
