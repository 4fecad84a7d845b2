"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) from the official folders, python or binary version: the same images in the same
order. https://www.cs.toronto.edu/~kriz/cifar.html

Every file is compared with its official MD5 sum, except those of the binary version of CIFAR-100: there the number of images
and the labels are checked, and a changed pixel would not be noticed.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch

from ..common.torchvision_shim import ensure_torchvision
from .cifar_versions import IMAGES, MD5, VERSIONS, Version
from .config import DataConfig
from .configured import configured
from .dataset import DataSet, MemorySplit


def open_cifar10(data_dir: Path | None, config: DataConfig) -> DataSet:
    """60,000 small photographs, 32x32, 10 classes."""
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return _open("cifar10", "CIFAR10", 10, mean, std, data_dir, config)


def open_cifar100(data_dir: Path | None, config: DataConfig) -> DataSet:
    """60,000 small photographs, 32x32, 100 classes."""
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return _open("cifar100", "CIFAR100", 100, mean, std, data_dir, config)


def _open(
    name: str,
    torchvision_name: str,
    classes: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    data_dir: Path | None,
    config: DataConfig,
) -> DataSet:
    if data_dir is None:
        raise ValueError(f"{name} is not part of the package: say where it is with --data-dir")
    found = find_cifar(name, data_dir)
    if found is None and config.download:
        ensure_torchvision()
        from torchvision import datasets

        getattr(datasets, torchvision_name)(data_dir, download=True)
        found = find_cifar(name, data_dir)
    if found is None:
        raise FileNotFoundError(f"{name}: {_what_is_missing(name, data_dir)}; give the folder that holds it, or --download")
    version, folder = found
    names = version.read_names(_checked(folder / version.names))
    if len(names) != classes:
        raise ValueError(f"{folder / version.names}: {len(names)} class names, {classes} expected")
    train = _split([folder / file for file in version.train], version)
    test = _split([folder / version.test], version)
    return configured(DataSet(name, {"train": train, "test": test}, names, train.size, mean, std), config)


def find_cifar(name: str, data_dir: Path) -> tuple[Version, Path] | None:
    """The version that is there and its folder: `data_dir` itself or a folder in it."""
    places = ((version, folder) for version in VERSIONS[name] for folder in (data_dir / version.folder, data_dir))
    return next((place for place in places if not _missing(*place)), None)


def _missing(version: Version, folder: Path) -> list[str]:
    return [file for file in (*version.train, version.test, version.names) if not (folder / file).is_file()]


def _what_is_missing(name: str, data_dir: Path) -> str:
    for version in VERSIONS[name]:
        for folder in (data_dir / version.folder, data_dir):
            if folder.name == version.folder and folder.is_dir():
                return f"{folder} lacks {', '.join(_missing(version, folder))}"
    return f"found neither {' nor '.join(version.folder for version in VERSIONS[name])} in {data_dir}"


def _checked(path: Path) -> bytes:
    content = path.read_bytes()
    expected = MD5.get(path.name)
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if expected is not None and found != expected:
        raise ValueError(f"{path} is damaged: its MD5 sum is {found}, the official one {expected}; fetch it again")
    return content


def _split(paths: list[Path], version: Version) -> MemorySplit:
    parts = []
    for path in paths:
        content = _checked(path)
        try:
            pixels, labels = version.read(content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        expected = IMAGES.get(path.name, len(pixels))
        if not len(pixels) == len(labels) == expected:
            raise ValueError(f"{path}: {len(pixels)} images and {len(labels)} labels, {expected} expected")
        parts.append((pixels, labels))
    images = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    return MemorySplit(torch.from_numpy(images), torch.from_numpy(labels))
