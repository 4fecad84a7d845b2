"""A directory without a name: what it holds, or what was looked for."""

from pathlib import Path

import pytest

from data.image_files import write_image
from dynavit.data.cifar_versions import VERSIONS
from dynavit.data.config import DataConfig
from dynavit.data.open import open_data
from dynavit.data.recognise import data_name, recognise


def images(root, *names):
    for name in names:
        write_image(root / name, 0)


def test_without_a_directory_it_is_digits():
    assert data_name("auto", None) == "digits"
    assert data_name("cifar10", Path("anywhere")) == "cifar10"


def test_folders_of_images(tmp_path):
    images(tmp_path / "split", "train/cat/0.png", "train/dog/0.png", "val/cat/1.png", "val/dog/1.png")
    images(tmp_path / "flat", *(f"{kind}/{i}.png" for kind in ("cat", "dog") for i in range(4)))
    assert [recognise(tmp_path / name) for name in ("split", "flat")] == ["folder", "folder"]
    flat = open_data("auto", tmp_path / "flat", DataConfig(val_fraction=0.25))
    assert (flat.name, flat.classes) == ("folder", ["cat", "dog"])
    assert {name: len(split) for name, split in flat.splits.items()} == {"train": 6, "val": 2}


def test_files_of_listops(tmp_path):
    (tmp_path / "basic_test.tsv").write_text("Source\tTarget\n[MAX 1 2 ]\t2\n")
    assert recognise(tmp_path) == "listops" and open_data("auto", tmp_path).splits.keys() == {"test"}


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(tmp_path, name):
    for version in VERSIONS[name]:
        folder = tmp_path / version.folder
        folder.mkdir()
        for file in (*version.train, version.test, version.names):
            (folder / file).touch()
        assert recognise(tmp_path) == recognise(folder) == name


def test_fashion_mnist(tmp_path):
    (tmp_path / "FashionMNIST" / "raw").mkdir(parents=True)
    assert recognise(tmp_path) == "fashion_mnist"


def test_imagenet(tmp_path):
    from dynavit.data.imagenet import imagenet_classes

    ids, _ = imagenet_classes()
    for each in ids:
        (tmp_path / "val" / each).mkdir(parents=True)
    assert recognise(tmp_path) == "imagenet"
    images(tmp_path, f"val/{ids[0]}/0.png")
    (tmp_path / "val" / ids[-1]).rmdir()
    assert recognise(tmp_path) == "folder"


def test_anything_else_is_refused_with_what_was_looked_for(tmp_path):
    images(tmp_path, "0.png", "1.png")
    with pytest.raises(
        ValueError, match=r"given without --data, and it holds neither folders of images .*CIFAR-10.*dynavit list data"
    ):
        recognise(tmp_path)
    with pytest.raises(ValueError, match="there is no folder"):
        recognise(tmp_path / "absent")


def test_the_folder_one_level_below_is_named(tmp_path):
    images(tmp_path, "photos/train/cat/0.png", "photos/train/dog/0.png")
    with pytest.raises(ValueError, match=r"did you mean --data-dir \S+/photos, which holds data for --data folder\?"):
        recognise(tmp_path)


def test_images_with_boxes(tmp_path):
    (tmp_path / "coco" / "annotations").mkdir(parents=True)
    (tmp_path / "coco" / "annotations" / "instances_val2017.json").touch()
    (tmp_path / "pedestrians" / "PennFudanPed" / "PedMasks").mkdir(parents=True)
    assert recognise(tmp_path / "coco") == "coco"
    assert recognise(tmp_path / "pedestrians") == recognise(tmp_path / "pedestrians" / "PennFudanPed") == "penn_fudan"
