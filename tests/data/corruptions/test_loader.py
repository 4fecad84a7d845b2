"""Corruption of what a model sees, by any loader."""

import pytest
import torch

from data.image_files import write_folder
from dynavit.data.config import DataConfig
from dynavit.data.corruptions import corrupt
from dynavit.data.corruptions.loader import CorruptedLoader, as_bytes
from dynavit.data.dataset import DataSet, MemorySplit
from dynavit.data.folder import open_folder
from dynavit.data.loader import make_loader
from dynavit.data.memory import normalise

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def in_memory(samples=10, side=16):
    images = torch.randint(0, 256, (samples, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = MemorySplit(images, torch.arange(samples) % 2)
    return DataSet("noise", {"test": split}, ["a", "b"], (side, side), MEAN, STD)


def batches_of(data, name, severity, split="test", batch_size=4, **options):
    loader = make_loader(data, split, train=False, batch_size=batch_size, config=DataConfig(workers=0))
    options = {"numbers": torch.arange(loader.samples), **options}
    corrupted = CorruptedLoader(loader, data, name, severity, **options)
    assert (corrupted.steps, corrupted.samples) == (loader.steps, loader.samples)
    return [batch for batches in corrupted.epoch() for batch in batches]


def inputs_of(*args, **options):
    return torch.cat([batch.inputs for batch in batches_of(*args, **options)])


def test_every_byte_survives_normalising():
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(1, 3, 1, 1)
    for dtype in (torch.float32, torch.float64):
        mean, std = torch.tensor(MEAN, dtype=dtype), torch.tensor(STD, dtype=dtype)
        assert torch.equal(as_bytes(normalise(images, mean, std), mean, std), images)


def test_severity_0_changes_nothing():
    data = in_memory()
    loader = make_loader(data, "test", train=False, batch_size=10)
    assert torch.equal(inputs_of(data, "clean", 0), next(iter(loader.epoch()))[0].inputs)


def test_images_are_corrupted_as_bytes():
    data, numbers = in_memory(), torch.arange(10) * 7
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    expected = corrupt(data.splits["test"].images, "gaussian_noise", 3, seed=5, index=numbers)
    found = inputs_of(data, "gaussian_noise", 3, seed=5, numbers=numbers)
    assert torch.equal(found, normalise(expected, mean, std))
    assert torch.equal(inputs_of(data, "gaussian_noise", 3, seed=5, numbers=numbers, batch_size=3), found)
    assert not torch.equal(inputs_of(data, "gaussian_noise", 3, seed=6, numbers=numbers), found)
    assert not torch.equal(inputs_of(data, "gaussian_noise", 3, seed=5), found), (
        "its number is what a sample's noise depends on"
    )


def test_labels_and_counts_are_those_of_the_loader():
    data = in_memory()
    batches = batches_of(data, "fog", 1)
    assert torch.equal(torch.cat([batch.targets for batch in batches]), data.splits["test"].labels)
    assert [batch.count for batch in batches] == [4, 4, 2]


@pytest.mark.parametrize("name", ["jpeg_compression", "shot_noise"])
def test_files_are_corrupted_after_resizing(tmp_path, name):
    write_folder(tmp_path, {"val": {"cat": 2, "dog": 1}})
    data = open_folder(tmp_path, DataConfig(image_size=32))
    loader = make_loader(data, "val", train=False, batch_size=3, config=DataConfig(workers=0))
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)
    seen = as_bytes(next(iter(loader.epoch()))[0].inputs, mean, std)
    expected = normalise(corrupt(seen, name, 4, index=torch.arange(3)), mean, std)
    assert torch.equal(inputs_of(data, name, 4, split="val", batch_size=2), expected)
