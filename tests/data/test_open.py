"""Data sets by name, and the loader that fits."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dynavit.common.data import LoaderOptions
from dynavit.common.registry import UnknownNameError
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.dataset import DataSet, FileSplit
from dynavit.data.file_loader import FileLoader
from dynavit.data.loader import make_loader
from dynavit.data.memory_loader import MemoryLoader
from dynavit.data.open import DATA, list_data, open_data


def test_every_name_has_an_opener_and_a_line_about_it():
    images = {"digits", "fashion_mnist", "cifar10", "cifar100", "folder", "imagenet", "list"}
    assert set(list_data()) == {*images, "listops", "coco", "detection_folder", "penn_fudan", "shapes"}
    assert list_data()["digits"] == "1,797 handwritten digits, 8x8, part of the package"
    for name, about in list_data().items():
        assert callable(DATA[name]) and DATA.guest(name) is None and 20 < len(about) < 80 and not about.endswith(".")


@pytest.mark.parametrize("name", ["digits", "hfds/some/set"])
def test_options_that_nobody_takes_are_refused(name):
    with pytest.raises(ValueError, match=f"loading.options: the data set {name} has no options of its own, but got length"):
        open_data(name, None, DataConfig(options={"length": 3}))


def test_unknown_names_get_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown data set 'cifar-10'. Did you mean 'cifar10'"):
        open_data("cifar-10")


def test_scheme_strings_are_timms(monkeypatch):
    given = []
    monkeypatch.setattr("dynavit.data.timm_scheme.open_scheme", lambda *arguments: given.append(arguments))
    config = DataConfig(strict=True)
    open_data("hfds/some/set", Path("~/x"), config)
    assert given == [("hfds/some/set", Path("~/x").expanduser(), config)]


def test_digits_need_neither_timm_nor_torchvision():
    code = (
        "from dynavit.data.open import open_data\n"
        "from dynavit.data.loader import make_loader\n"
        "next(make_loader(open_data('digits'), 'train', train=True, batch_size=4).epoch())\n"
        "import sys\n"
        "print({'timm', 'torchvision'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == "set()\n", run.stderr


def test_loaders_fit_their_splits(tmp_path):
    digits = open_data("digits")
    options = {"train": True, "batch_size": 7, "seed": 2, "dtype": torch.float64, "rank": 1, "world": 2, "accumulate": 3}
    loader = make_loader(digits, "val", augment=AugmentConfig(erase=0.5), **options)
    assert isinstance(loader, MemoryLoader)
    how = LoaderOptions(augment=AugmentConfig(erase=0.5), config=DataConfig(), **options)
    direct = MemoryLoader(digits.splits["val"], digits, how)
    for ours, theirs in zip(loader.epoch(1), direct.epoch(1), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one.inputs, other.inputs) and torch.equal(one.index, other.index)

    files = FileSplit([str(tmp_path / "a.png")] * 5, torch.zeros(5, dtype=torch.long))
    data = DataSet("x", {"train": files}, ["a"], (8, 8), (0.5,) * 3, (0.5,) * 3)
    loader = make_loader(data, "train", config=DataConfig(workers=0), **options)
    assert isinstance(loader, FileLoader)
    assert (loader.samples, loader.steps) == (5, 1)


def test_a_split_that_is_not_there():
    digits = open_data("digits", config=DataConfig(val_fraction=0))
    with pytest.raises(ValueError, match="digits has no split 'val'; it has train, test"):
        make_loader(digits, "val", train=False, batch_size=4)


@pytest.mark.parametrize(
    ("option", "value"), [("padding", -0.1), ("padding", 1.5), ("erase", -0.5), ("erase", 1.1), ("repeats", 0), ("repeats", -2)]
)
def test_impossible_augmentation(option, value):
    with pytest.raises(ValueError, match=f"augment.{option}={value}: "):
        make_loader(open_data("digits"), "train", train=True, batch_size=4, augment=AugmentConfig(**{option: value}))


def test_a_batch_has_samples():
    with pytest.raises(ValueError, match="batch_size=0: a batch has at least one sample"):
        make_loader(open_data("digits"), "train", train=True, batch_size=0)
