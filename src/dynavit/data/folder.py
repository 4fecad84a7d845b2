"""Images in folders, one for each class: `train/<class>/...`, `val/<class>/...`, and where there is one `test/<class>/...`.

Class folders without a split above them are all for training.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch

from .config import DataConfig
from .configured import configured
from .dataset import DataSet, FileSplit, MapSplit

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # those of torchvision
SPLITS = {"train": ("train",), "val": ("val", "validation"), "test": ("test",)}

PHOTO_SIZE = 224
# Those of ImageNet, as usual for photographs.
PHOTO_MEAN = (0.485, 0.456, 0.406)
PHOTO_STD = (0.229, 0.224, 0.225)

AnyFiles = TypeVar("AnyFiles", FileSplit, MapSplit)


def open_folder(data_dir: Path | None, config: DataConfig) -> DataSet:
    """train/<class>/image and val/<class>/image, or only <class>/image.

    Classes are the names of folders in alphabetical order, and the same in every split. Without `val/` (or `validation/`) some
    of train is cut off; without `train/` the set is for evaluation only.
    """
    if data_dir is not None and data_dir.is_dir() and not split_folders(data_dir) and holds_classes(data_dir):
        files = {"train": images_by_class(data_dir)}
    else:
        files = list_images("folder", data_dir)
    classes = same_classes("folder", files)
    return photo_data_set("folder", as_splits(files, classes), classes, config)


def list_images(name: str, data_dir: Path | None) -> dict[str, dict[str, list[str]]]:
    """split -> class -> paths, all in alphabetical order. Every class has images."""
    if data_dir is None:
        raise ValueError(f"data {name} needs data_dir, the folder that holds train/ and val/")
    if not data_dir.is_dir():
        raise ValueError(f"data {name}: there is no folder {data_dir}")
    found = {}
    for split, there in split_folders(data_dir).items():
        if len(there) > 1:
            raise ValueError(f"data {name}: both {there[0]} and {there[1]} could be the validation split; rename one of them")
        found[split] = images_by_class(there[0])
    if not {"train", "val"} & set(found):
        raise ValueError(
            f"data {name}: {data_dir} holds neither train/ nor val/, only {some(sorted(p.name for p in data_dir.iterdir()))}; "
            f"expected images at {data_dir / 'train' / '<class>' / 'image.jpg'}"
        )
    return found


def split_folders(data_dir: Path) -> dict[str, list[Path]]:
    """The folders of each split that has one; two where it is not clear which is meant."""
    found = {
        split: [data_dir / folder for folder in folders if (data_dir / folder).is_dir()] for split, folders in SPLITS.items()
    }
    return {split: there for split, there in found.items() if there}


def holds_classes(directory: Path) -> bool:
    """Whether the folders of a directory are those of classes: at least two, and images lie in all of them.

    Images further down do not count: those are more likely splits by other names.
    """
    folders = class_folders(directory)
    return len(folders) > 1 and all(any(_is_image(each.name) for each in (directory / folder).iterdir()) for folder in folders)


def class_folders(directory: Path) -> list[str]:
    """Names of its folders, in alphabetical order."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def same_classes(name: str, files: dict[str, dict[str, list[str]]]) -> list[str]:
    """The classes that all splits share."""
    first, *others = files
    for other in others:
        for here, there in ((first, other), (other, first)):
            if surplus := sorted(files[here].keys() - files[there].keys()):
                raise ValueError(
                    f"data {name}: classes in {here} but not in {there}: {some(surplus)}; all splits need the same"
                )
    return list(files[first])


def as_splits(files: dict[str, dict[str, list[str]]], folders: list[str]) -> dict[str, FileSplit]:
    """Labels count the folders in their order."""
    return {
        split: FileSplit(
            [path for folder in folders for path in by_class[folder]],
            torch.tensor([label for label, folder in enumerate(folders) for _ in by_class[folder]]),
        )
        for split, by_class in files.items()
    }


def photo_data_set(
    name: str, splits: dict[str, AnyFiles], classes: list[str], config: DataConfig, mirrored: bool = True
) -> DataSet:
    """Images in files, of a size and with colours as photographs usually have."""
    return configured(DataSet(name, {**splits}, classes, (PHOTO_SIZE, PHOTO_SIZE), PHOTO_MEAN, PHOTO_STD, mirrored), config)


def some(names: Sequence[str], at_most: int = 5) -> str:
    """The first few, and how many there are."""
    if not names:
        return "nothing"
    return ", ".join(names[:at_most]) + (f", ... ({len(names)} in all)" if len(names) > at_most else "")


def images_by_class(split: Path) -> dict[str, list[str]]:
    """Paths below each folder of `split`, all in alphabetical order. Every folder has images."""
    folders = class_folders(split)
    if not folders:
        raise ValueError(f"{split} holds no folders; expected one for each class, as in {split / '<class>' / 'image.jpg'}")
    found = {folder: _images(split / folder) for folder in folders}
    if empty := [folder for folder, images in found.items() if not images]:
        raise ValueError(f"{split}: no images in class {some(empty)}; images end in {', '.join(EXTENSIONS)}")
    return found


def has_image(folder: Path) -> bool:
    return any(_is_image(file) for _, _, files in os.walk(folder, followlinks=True) for file in files)


def _is_image(file: str) -> bool:
    """By its name. Hidden files, which systems leave behind, do not count."""
    return file.lower().endswith(EXTENSIONS) and not file.startswith(".")


def _images(folder: Path) -> list[str]:
    """Images in a folder and those below it, in torchvision's order."""
    return [
        os.path.join(place, file)  # noqa: PTH118  (six times as fast as Path)
        for place, _, files in sorted(os.walk(folder, followlinks=True))
        for file in sorted(files)
        if _is_image(file)
    ]
