"""Image folders: what is found, and what is refused before training begins."""

from pathlib import Path

import pytest

from data.image_files import write_folder, write_image
from dynavit.data.config import DataConfig
from dynavit.data.folder import open_folder


def names(split):
    return [str(Path(path).relative_to(Path(path).parents[2])) for path in split.paths]


def test_classes_and_files_in_alphabetical_order(tmp_path):
    root = write_folder(
        tmp_path, {"train": {"b": 2, "a": 1, "C": 1}, "val": {"C": 1, "a": 1, "b": 1}, "test": {"C": 1, "a": 1, "b": 2}}
    )
    data = open_folder(root, DataConfig())
    assert data.classes == ["C", "a", "b"]
    assert names(data.splits["train"]) == ["train/C/0.png", "train/a/0.png", "train/b/0.png", "train/b/1.png"]
    assert data.splits["train"].labels.tolist() == [0, 1, 2, 2]
    assert names(data.splits["val"]) == ["val/C/0.png", "val/a/0.png", "val/b/0.png"]
    assert data.splits["test"].labels.tolist() == [0, 1, 2, 2]
    assert (data.image_size, data.channels, data.notes) == ((224, 224), 3, ())


def test_extensions_subfolders_links_and_what_systems_leave_behind(tmp_path):
    root = write_folder(tmp_path / "set", {"train": {"a": 1, "b": 1}, "val": {"a": 1, "b": 1}})
    here = root / "train/a"
    write_image(here / "deep/er/x.JPEG", 1)
    write_image(here / "y.webp", 2)
    write_image(tmp_path / "elsewhere/z.bmp", 3)
    (here / "link").symlink_to(tmp_path / "elsewhere")
    for litter in (".DS_Store", "._x.jpg", "notes.txt", "x.jpg.part"):
        (here / litter).write_bytes(b"")
    (root / "train/.cache").mkdir()
    (root / "train/readme.txt").write_text("")
    data = open_folder(root, DataConfig(image_size=64))
    assert [Path(p).name for p in data.splits["train"].paths] == ["0.png", "y.webp", "x.JPEG", "z.bmp", "0.png"]
    assert data.image_size == (64, 64)


def test_the_same_files_and_order_as_torchvision(tmp_path):
    from dynavit.common.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    from torchvision.datasets import ImageFolder

    root = write_folder(tmp_path, {"train": {"b": 12, "a 1": 3, "a": 2}, "val": {"b": 1, "a 1": 1, "a": 1}})
    write_image(root / "train/a/-/0.ppm", 5)
    theirs, ours = ImageFolder(str(root / "train")), open_folder(root, DataConfig())
    assert ours.classes == theirs.classes
    assert list(zip(ours.splits["train"].paths, ours.splits["train"].labels.tolist(), strict=True)) == theirs.samples


def test_without_val_some_of_train_is_cut(tmp_path):
    root = write_folder(tmp_path, {"train": {"a": 10, "b": 10}})
    data = open_folder(root, DataConfig(val_fraction=0.2))
    assert sorted(data.splits["val"].labels.tolist()) == [0, 0, 1, 1] and len(data.splits["train"]) == 16
    assert not set(data.splits["train"].paths) & set(data.splits["val"].paths)
    assert "4 of 20" in data.notes[0]


def test_validation_is_another_name_and_train_may_be_missing(tmp_path):
    root = write_folder(tmp_path, {"validation": {"a": 1, "b": 1}})
    data = open_folder(root, DataConfig())
    assert list(data.splits) == ["val"] and data.classes == ["a", "b"]


def error(root, counts=None):
    with pytest.raises(ValueError) as caught:
        open_folder(write_folder(root, counts) if counts else root, DataConfig())
    return str(caught.value)


def test_unequal_classes_are_named(tmp_path):
    assert "classes in train but not in val: dog;" in error(tmp_path / "1", {"train": {"cat": 1, "dog": 1}, "val": {"cat": 1}})
    assert "classes in val but not in train: dog;" in error(tmp_path / "2", {"val": {"cat": 1, "dog": 1}, "train": {"cat": 1}})
    many = {f"c{i}": 1 for i in range(8)}
    message = error(tmp_path / "3", {"train": {"a": 1}, "test": {"a": 1, **many}})
    assert "classes in test but not in train: c0, c1, c2, c3, c4, ... (8 in all)" in message


def test_an_empty_class_is_named(tmp_path):
    message = error(tmp_path, {"train": {"a": 1, "b": 0}, "val": {"a": 1, "b": 1}})
    assert f"{tmp_path / 'train'}: no images in class b;" in message


def test_no_folder_no_splits_no_classes(tmp_path):
    with pytest.raises(ValueError, match="data folder needs data_dir"):
        open_folder(None, DataConfig())
    assert error(tmp_path / "absent") == f"data folder: there is no folder {tmp_path / 'absent'}"
    write_image(tmp_path / "flat/cat/0.png", 0)
    assert "holds neither train/ nor val/, only cat;" in error(tmp_path / "flat")
    (tmp_path / "empty").mkdir()
    assert "only nothing;" in error(tmp_path / "empty")
    write_image(tmp_path / "unsorted/train/0.png", 0)
    assert f"{tmp_path / 'unsorted/train'} holds no folders" in error(tmp_path / "unsorted")


def test_two_validation_folders(tmp_path):
    message = error(tmp_path, {"train": {"a": 1}, "val": {"a": 1}, "validation": {"a": 1}})
    assert f"both {tmp_path / 'val'} and {tmp_path / 'validation'}" in message
