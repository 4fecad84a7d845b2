"""The data set that a directory holds, where the user gave no name: looked at, never guessed."""

from pathlib import Path

from .cifar import find_cifar
from .folder import class_folders, has_image, holds_classes, split_folders
from .pack import INDEX

AUTO = "auto"
NO_DIRECTORY = "digits"  # what `auto` is without a directory


def data_name(name: str, data_dir: Path | None) -> str:
    """The name itself; for `auto` what the directory holds, and digits without one."""
    if name != AUTO:
        return name
    return NO_DIRECTORY if data_dir is None else recognise(Path(data_dir).expanduser())


def recognise(directory: Path) -> str:
    """The name in `list_data()` of what a directory holds: official files of CIFAR or Fashion-MNIST, the Long Range
    Arena's of ListOps, COCO, Penn-Fudan, ImageNet, class folders.

    Raises:
        ValueError: it holds none of them; the message names what was looked for, and a folder in it that holds one.
    """
    if not directory.is_dir():
        raise ValueError(f"--data-dir: there is no folder {directory}")
    if found := _name(directory):
        return found
    inside = [(each, _name(each)) for each in sorted(directory.iterdir()) if each.is_dir() and not each.name.startswith(".")]
    hint = next((f"; did you mean --data-dir {each}, which holds data for --data {name}?" for each, name in inside if name), "")
    raise ValueError(
        f"--data-dir {directory} was given without --data, and it holds neither folders of images (train/<class>/image.jpg and "
        f"val/<class>/..., or <class>/image.jpg) nor the files of CIFAR-10, CIFAR-100, Fashion-MNIST, ImageNet or COCO{hint}"
        f"{'' if hint else '; name the data set with --data (dynavit list data)'}"
    )


def _name(directory: Path) -> str | None:
    for name in ("cifar10", "cifar100"):
        if find_cifar(name, directory) is not None:
            return name
    if (directory / "FashionMNIST" / "raw").is_dir():
        return "fashion_mnist"
    if any((directory / f"basic_{split}.tsv").is_file() for split in ("train", "val", "test")):
        return "listops"
    if any((directory / "annotations").glob("instances_*.json")):
        return "coco"
    if any((place / "PedMasks").is_dir() for place in (directory, directory / "PennFudanPed")):
        return "penn_fudan"
    if (directory / INDEX).is_file() and any(directory.glob("*.tar")):
        return "wds/"
    splits = [split for there in split_folders(directory).values() for split in there]
    classes = {name for split in splits for name in class_folders(split)}
    if _is_imagenet(classes):
        return "imagenet"
    photos = any(has_image(split / name) for split in splits for name in class_folders(split)) or holds_classes(directory)
    return "folder" if photos else None


def _is_imagenet(classes: set[str]) -> bool:
    if len(classes) != 1000 or not all(name.startswith("n") for name in classes):
        return False
    from .imagenet import imagenet_classes  # brings timm

    return classes == set(imagenet_classes()[0])
