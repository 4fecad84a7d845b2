"""Hugging Face's data sets, with a stand-in for the package, which is an extra."""

import io
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image as Pillow

from data.image_files import write_image
from dynavit.data.config import DataConfig
from dynavit.data.hub import open_hub


class Image:
    def __init__(self, decode=True):
        self.decode = decode


class ClassLabel:
    names = ("cat", "dog")


class Column(list):
    pass


class Rows:
    """As much of `datasets.Dataset` as is used; images are decoded unless the column was cast."""

    def __init__(self, images, labels, features=None):
        self.images, self.labels = images, labels
        self.features = features or {"img": Image(), "label": ClassLabel()}

    def cast_column(self, name, feature):
        return Rows(self.images, self.labels, {**self.features, name: feature})

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, key):
        if isinstance(key, str):
            return Column(self.labels)
        assert not self.features["img"].decode
        return {"img": self.images[key], "label": self.labels[key]}


def as_bytes(number):
    buffer = io.BytesIO()
    Pillow.new("RGB", (2, 2), (number, 0, 0)).save(buffer, "png")
    return {"bytes": buffer.getvalue(), "path": None}


@pytest.fixture
def hub(monkeypatch):
    """The stand-in; `hub.kept` are its splits, `hub.seen` what it was asked for and whether it was offline then."""
    fake = ModuleType("datasets")
    fake.Image, fake.ClassLabel, fake.kept, fake.seen = Image, ClassLabel, {}, []
    fake.config = SimpleNamespace(HF_HUB_OFFLINE=False)
    constants = SimpleNamespace(HF_HUB_OFFLINE=False)

    def load_dataset(name, cache_dir):
        assert fake.config.HF_HUB_OFFLINE == constants.HF_HUB_OFFLINE
        fake.seen.append((name, cache_dir, constants.HF_HUB_OFFLINE))
        if name == "absent":
            raise ConnectionError("Couldn't reach 'absent' on the Hub")
        return fake.kept

    fake.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", fake)
    monkeypatch.setitem(sys.modules, "datasets.config", fake.config)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
    yield fake
    assert not fake.config.HF_HUB_OFFLINE and not constants.HF_HUB_OFFLINE


def test_splits_columns_and_classes(hub, tmp_path):
    path = write_image(tmp_path / "a.png", 3)
    hub.kept = {
        "train": Rows([as_bytes(5), {"bytes": None, "path": str(path)}, as_bytes(7)], [1, 0, 1]),
        "validation": Rows([as_bytes(8), {"bytes": b"broken", "path": None}], [0, 1]),
        "test": Rows([as_bytes(9)], [-1]),  # labels are kept secret
    }
    data = open_hub("User/Name", tmp_path, DataConfig())
    assert list(data.splits) == ["train", "val"] and data.classes == ["cat", "dog"] and data.name == "hfds/User/Name"
    train, val = data.splits["train"], data.splits["val"]
    assert train.labels.tolist() == [1, 0, 1]
    assert [np.asarray(train.read(key))[0, 0, 0] for key in (train.keys[0], train.keys[2])] == [5, 7]
    with Pillow.open(path) as image:
        assert (np.asarray(train.read(train.keys[1])) == np.asarray(image)).all()
    with pytest.raises(ValueError, match="cannot read image 1 of validation of hfds/User/Name"):
        val.read(val.keys[1])
    assert hub.seen == [("User/Name", str(tmp_path), True)]


def test_the_network_is_used_only_when_asked(hub):
    hub.kept = {"train": Rows([as_bytes(0)] * 4, [0, 1, 0, 1]), "val": Rows([as_bytes(0)] * 2, [0, 1])}
    open_hub("x", None, DataConfig(download=True))
    assert hub.seen == [("x", None, False)]
    with pytest.raises(ValueError, match="data hfds/absent: Couldn't reach .*; --download fetches it from the Hub"):
        open_hub("absent", None, DataConfig())


def test_sets_without_images_classes_or_splits(hub):
    hub.kept = {"train": Rows([], [], {"img": Image(), "fine": ClassLabel(), "coarse": ClassLabel()})}
    with pytest.raises(ValueError, match="expected one column of type ClassLabel, found 2 among img, fine, coarse"):
        open_hub("x", None, DataConfig())
    hub.kept = {"all": Rows([], [])}
    with pytest.raises(ValueError, match="has the splits all, but no train"):
        open_hub("x", None, DataConfig())


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="data hfds/x needs datasets, which is not installed"):
        open_hub("x", None, DataConfig())
