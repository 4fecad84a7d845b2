"""Variants of ImageNet's validation images, in folders named by WordNet ids.

ImageNet-C: <corruption>/<severity>/<id>/*.JPEG, also inside noise/, blur/, weather/, digital/ (arXiv 1903.12261).
ImageNet-R: renditions, <id>/* of 200 classes (arXiv 2006.16241). ImageNet-A: hard photographs, of 200 others (1907.07174).
"""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import torch

from ..common.torchvision_shim import ensure_torchvision
from .corruptions import CORRUPTIONS
from .dataset import DataSet, FileSplit
from .folder import PHOTO_MEAN, PHOTO_SIZE, PHOTO_STD, as_splits, images_by_class, some
from .imagenet import imagenet_classes

VARIANTS = {"imagenet_r": "ImageNet-R", "imagenet_a": "ImageNet-A"}


def class_numbers(classes: Sequence[str]) -> tuple[dict[str, int], str | None]:
    """WordNet id to number for a model with these classes, and a note if that is a guess."""
    ids, names = imagenet_classes()
    if set(classes) <= set(ids):
        return {id: number for number, id in enumerate(classes)}, None
    if set(classes) == set(names):
        id_of = dict(zip(names, ids, strict=True))
        return {id_of[name]: number for number, name in enumerate(classes)}, None
    if len(classes) != len(ids):
        raise ValueError(
            f"the model tells {len(classes)} classes apart ({some(list(classes), 3)}), which are not ImageNet's: neither "
            f"WordNet ids nor {len(ids)} in all"
        )
    note = f"the {len(ids)} classes have other names than ImageNet's and are taken in its order"
    return {id: number for number, id in enumerate(ids)}, note


def is_imagenet(classes: Sequence[str]) -> bool:
    """Whether these are all classes of ImageNet-1k, by id or by name, in any order."""
    return any(set(classes) == set(known) for known in imagenet_classes())


def open_imagenet_c(folder: Path, corruption: str, severity: int, classes: Sequence[str]) -> DataSet:
    """One corruption at one severity: the split "test". Folders of classes that the model does not know are left out.

    The files are crops of 224 pixels already, so they are not cropped again, and not resized for a model of that size.
    """
    place = corruption_folders(folder, [corruption], [severity])[corruption] / str(severity)
    numbers, _ = class_numbers(classes)
    files = images_by_class(place)
    if missing := sorted(numbers.keys() - files.keys()):
        raise ValueError(f"ImageNet-C: {place} lacks the class folders {some(missing)}")
    return _photographs("imagenet_c", files, numbers, classes, crop_pct=1.0)


def corruption_folders(folder: Path, corruptions: Sequence[str], severities: Sequence[int]) -> dict[str, Path]:
    """Corruption -> its folder, which has all of these severities."""
    if not folder.is_dir():
        raise ValueError(f"ImageNet-C: there is no folder {folder}")
    inside = [entry for entry in sorted(folder.iterdir()) if entry.is_dir()]
    found = {entry.name: entry for parent in inside for entry in (parent, *parent.iterdir()) if entry.name in CORRUPTIONS}
    if missing := [name for name in corruptions if name not in found]:
        there = [name for name in CORRUPTIONS if name in found]
        hint = "which --corruptions can choose" if there else f"expected as {folder / CORRUPTIONS[0] / '1' / '<id>'}"
        has = ", ".join(there) or "no corruption at all"
        raise ValueError(f"ImageNet-C: {folder} lacks {', '.join(missing)}; it has {has}, {hint}")
    for name in corruptions:
        if missing := [str(severity) for severity in severities if not (found[name] / str(severity)).is_dir()]:
            has = ", ".join(sorted(entry.name for entry in found[name].iterdir() if entry.is_dir())) or "none"
            raise ValueError(f"ImageNet-C: {found[name]} has no severity {', '.join(missing)}; it has {has}")
    return found


def open_variant(variant: str, folder: Path, classes: Sequence[str]) -> tuple[DataSet, list[int]]:
    """ImageNet-R or -A as the split "test", and the numbers of its 200 classes: answers outside them do not count."""
    title, ids = VARIANTS[variant], variant_ids(variant)
    if not folder.is_dir():
        raise ValueError(f"{title}: there is no folder {folder}")
    numbers, _ = class_numbers(classes)
    if unknown := [id for id in ids if id not in numbers]:
        raise ValueError(f"{title}: the model does not know the classes {some(unknown)}")
    files = images_by_class(folder)
    for wrong, those in (("lacks", set(ids) - files.keys()), ("also has", files.keys() - set(ids))):
        if those:
            raise ValueError(f"{title}: {folder} {wrong} the class folders {some(sorted(those))}; it has exactly {len(ids)}")
    return _photographs(variant, files, numbers, classes), sorted(numbers[id] for id in ids)


def variant_ids(variant: str) -> list[str]:
    """The WordNet ids of ImageNet-R or -A."""
    ensure_torchvision()
    return (resources.files("timm.data") / "_info" / f"{variant}_synsets.txt").read_text().split()


def _photographs(
    name: str,
    files: Mapping[str, list[str]],
    numbers: Mapping[str, int],
    classes: Sequence[str],
    crop_pct: float | None = None,
) -> DataSet:
    known = sorted(files.keys() & numbers.keys())
    split = as_splits({"test": dict(files)}, known)["test"]
    labels = torch.tensor([numbers[id] for id in known])[split.labels]
    side = (PHOTO_SIZE, PHOTO_SIZE)
    return DataSet(
        name, {"test": FileSplit(split.paths, labels)}, list(classes), side, PHOTO_MEAN, PHOTO_STD, crop_pct=crop_pct
    )
