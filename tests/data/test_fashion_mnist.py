"""Fashion-MNIST and the idx format, from small files made here."""

import gzip
import hashlib
import struct

import numpy as np
import pytest
import torch

from dynavit.common.torchvision_shim import ensure_torchvision
from dynavit.data import downloads, fashion_mnist
from dynavit.data.config import DataConfig
from dynavit.data.idx import read_idx
from dynavit.data.open import open_data


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def arrays():
    random = np.random.default_rng(0)
    return {
        "train-images-idx3-ubyte": random.integers(0, 256, (60, 28, 28), np.uint8),
        "train-labels-idx1-ubyte": (np.arange(60) % 10).astype(np.uint8),
        "t10k-images-idx3-ubyte": random.integers(0, 256, (20, 28, 28), np.uint8),
        "t10k-labels-idx1-ubyte": (np.arange(20) % 10).astype(np.uint8),
    }


def write(folder, monkeypatch, packed, changes=None):
    """The four files; the sums of what was written are taken for the official ones."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {name: idx(array) for name, array in (arrays() | (changes or {})).items()}
    for name, content in contents.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(fashion_mnist, "SHA256", sums)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("below", [".", "FashionMNIST/raw"])
def test_files_plain_or_packed_here_or_where_torchvision_puts_them(tmp_path, monkeypatch, packed, below):
    write(tmp_path / below, monkeypatch, packed)
    data = open_data("fashion_mnist", tmp_path, DataConfig(val_fraction=0))
    for split, prefix in (("train", "train"), ("test", "t10k")):
        assert torch.equal(data.splits[split].images[:, 0], torch.from_numpy(arrays()[f"{prefix}-images-idx3-ubyte"]))
        assert data.splits[split].labels.tolist() == arrays()[f"{prefix}-labels-idx1-ubyte"].tolist()
    assert (data.image_size, data.channels, len(data.classes), data.mirrored) == ((28, 28), 1, 10, True)


def test_missing_files_are_named(tmp_path, monkeypatch):
    write(tmp_path, monkeypatch, packed=False)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"neither t10k-labels-idx1-ubyte nor t10k-labels-idx1-ubyte.gz in .*--download"
    ):
        open_data("fashion_mnist", tmp_path)
    with pytest.raises(ValueError, match="say where it is with --data-dir"):
        open_data("fashion_mnist")


@pytest.mark.parametrize("packed", [True, False])
def test_a_changed_pixel_is_found(tmp_path, monkeypatch, packed):
    write(tmp_path, monkeypatch, packed)
    official = fashion_mnist.SHA256["t10k-images-idx3-ubyte"]
    changed = arrays()["t10k-images-idx3-ubyte"]
    changed[3, 4, 5] ^= 1
    write(tmp_path, monkeypatch, packed, {"t10k-images-idx3-ubyte": changed})
    found = fashion_mnist.SHA256["t10k-images-idx3-ubyte"]
    monkeypatch.setitem(fashion_mnist.SHA256, "t10k-images-idx3-ubyte", official)
    with pytest.raises(ValueError, match=f"t10k-images-idx3-ubyte.* is {found}, the official one {official}"):
        open_data("fashion_mnist", tmp_path)


def test_more_images_than_labels(tmp_path, monkeypatch):
    write(tmp_path, monkeypatch, False, {"train-labels-idx1-ubyte": (np.arange(59) % 10).astype(np.uint8)})
    with pytest.raises(ValueError, match="60 images but 59 labels in the train files"):
        open_data("fashion_mnist", tmp_path)


def test_downloads_go_through_torchvision_and_only_when_asked(tmp_path, monkeypatch):
    ensure_torchvision()
    from torchvision import datasets

    fetched = []

    def fetch(root, download):
        write(root / "FashionMNIST" / "raw", monkeypatch, packed=True)
        fetched.append(download)

    monkeypatch.setattr(datasets, "FashionMNIST", fetch)
    monkeypatch.setattr(downloads, "require_network", lambda address, what: None)
    with pytest.raises(FileNotFoundError):
        open_data("fashion_mnist", tmp_path)
    assert fetched == []
    for _ in range(2):  # the second time it is there
        assert len(open_data("fashion_mnist", tmp_path, DataConfig(download=True)).splits["test"]) == 20
    assert fetched == [True]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file of bytes with 1 axes: it begins with $"),
        (bytes((0, 0, 8, 3)) + bytes(20), "not an idx file of bytes with 1 axes: it begins with 00 00 08 03"),
        (bytes((0, 0, 13, 1)) + bytes(20), "begins with 00 00 0d 01"),
        (bytes((0, 0, 8, 1, 0, 0)), "not an idx file"),
        (bytes((0, 0, 8, 1, 0, 0, 0, 9)) + bytes(8), "cut off: 8 bytes for an array of 9"),
    ],
)
def test_files_that_are_not_idx(tmp_path, content, message):
    file = tmp_path / "x"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(file, axes=1)


def test_damaged_compression(tmp_path):
    whole = gzip.compress(idx(np.zeros(500, np.uint8)))
    for content in (whole[:-10], whole[:10] + b"\xff" + whole[11:], whole[:-6] + bytes(6), b"no gzip at all"):
        (tmp_path / "x.gz").write_bytes(content)
        with pytest.raises(ValueError, match="x.gz is damaged"):
            read_idx(tmp_path / "x.gz", axes=1)
