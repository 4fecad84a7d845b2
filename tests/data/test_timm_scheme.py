"""Scheme strings: torchvision's sets through timm, and what is refused."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from data.image_files import write_folder
from dynavit.data import timm_scheme
from dynavit.data.config import DataConfig
from dynavit.data.loader import make_loader
from dynavit.data.read_image import read_image
from dynavit.data.timm_scheme import open_scheme


def write_mnist(root: Path) -> Path:
    raw = root / "MNIST/raw"
    raw.mkdir(parents=True)
    for split, count in (("train", 20), ("t10k", 10)):
        images = np.repeat(np.arange(count, dtype=np.uint8), 28 * 28)
        (raw / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, count, 28, 28) + images.tobytes())
        labels = (np.arange(count) % 10).astype(np.uint8)
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, count) + labels.tobytes())
    return root


def test_train_and_test_of_torchvision(tmp_path):
    data = open_scheme("torch/mnist", write_mnist(tmp_path), DataConfig(image_size=28, val_fraction=0.5))
    assert data.name == "torch/mnist" and data.classes[3] == "3 - three" and not data.mirrored and data.channels == 3
    assert {split: len(images) for split, images in data.splits.items()} == {"train": 10, "val": 10, "test": 10}
    for split in data.splits.values():
        pixels = [np.asarray(split.read(key)) for key in split.keys]
        assert [int(image[5, 5, 1]) % 10 for image in pixels] == split.labels.tolist()
    loader = make_loader(data, "test", train=False, batch_size=4, config=DataConfig(workers=1))
    batches = [batch for (batch,) in loader.epoch()]
    assert [len(batch.inputs) for batch in batches] == [4, 4, 2] and batches[0].inputs.shape[1:] == (3, 28, 28)


def test_train_and_val_of_torchvision(tmp_path):
    root = write_folder(tmp_path, {"train": {"a": 2, "b": 1}, "val": {"a": 1, "b": 1}})
    data = open_scheme("torch/image_folder", root, DataConfig())
    assert set(data.splits) == {"train", "val"} and data.classes == ["a", "b"] and data.mirrored
    val = pickle.loads(pickle.dumps(data.splits["val"]))
    assert (np.asarray(val.read(1)) == np.asarray(read_image(root / "val/b/0.png"))).all()
    (root / "val/b/0.png").write_bytes(b"")
    with pytest.raises(ValueError, match="cannot read sample 1 of torch/image_folder: .*0.png"):
        val.read(1)


def test_unequal_classes(tmp_path):
    root = write_folder(tmp_path, {"train": {"a": 2, "b": 1}, "val": {"a": 1, "c": 1}})
    with pytest.raises(ValueError, match="data torch/folder: train and val have different classes"):
        open_scheme("torch/folder", root, DataConfig())


def test_nothing_there(tmp_path):
    with pytest.raises(ValueError, match="torchvision finds nothing in .*; --download fetches it"):
        open_scheme("torch/mnist", tmp_path, DataConfig())
    with pytest.raises(ValueError, match="data torch/nosuch: Unknown torchvision dataset nosuch"):
        open_scheme("torch/nosuch", tmp_path, DataConfig())
    with pytest.raises(ValueError, match="data torch/mnist needs data_dir"):
        open_scheme("torch/mnist", None, DataConfig())


def test_sets_without_a_list_of_labels(tmp_path, monkeypatch):
    monkeypatch.setattr(timm_scheme, "_create", lambda *_: [])
    with pytest.raises(ValueError, match="data torch/inat: torchvision has no list of its labels"):
        open_scheme("torch/inat", tmp_path, DataConfig())


@pytest.mark.parametrize("scheme", ["tfds", "hfids"])
def test_streams_are_refused_with_the_reason(scheme):
    with pytest.raises(ValueError, match=f"data {scheme}/x: .* come as a stream, and exact resumption needs numbered samples"):
        open_scheme(f"{scheme}/x", None, DataConfig())


def test_schemes_reach_their_openers(tmp_path):
    with pytest.raises(ValueError, match="data wds/: no tar files in"):
        open_scheme("wds/", tmp_path, DataConfig())
    with pytest.raises(ValueError, match="unknown scheme of data sets 'hdfs'. Did you mean 'hfds'"):
        open_scheme("hdfs/x", None, DataConfig())
