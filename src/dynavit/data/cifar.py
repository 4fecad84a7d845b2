"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) from the official folders, python or binary version, both the same images in the
same order. https://www.cs.toronto.edu/~kriz/cifar.html

Every file is compared with its official MD5 sum. For the binary version of CIFAR-100 we have no sums: there the number of
records and the labels are checked, and nothing would tell of a changed pixel.
"""

import hashlib
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..common.torchvision_shim import ensure_torchvision
from .config import DataConfig
from .dataset import DataSet, MemorySplit
from .memory import memory_dataset

Records = tuple[np.ndarray, np.ndarray]  # (n, 3072) uint8 pixels, channel by channel, and (n,) labels


@dataclass(frozen=True)
class Version:
    """One of the official forms of a data set.

    Attributes:
        folder: its official name.
        train, test: files of images.
        names: file of class names.
        read: bytes of such a file -> images and labels.
        read_names: bytes of `names` -> class names.
        md5: sums of the files.
        records: how many images a file has, where there is no sum.
    """

    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    read: Callable[[bytes], Records]
    read_names: Callable[[bytes], list[str]]
    md5: dict[str, str] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)


def open_cifar10(data_dir: Path | None, config: DataConfig) -> DataSet:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return _open("cifar10", "CIFAR10", 10, mean, std, data_dir, config)


def open_cifar100(data_dir: Path | None, config: DataConfig) -> DataSet:
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
    found = _find(name, data_dir)
    if found is None and config.download:
        ensure_torchvision()
        from torchvision import datasets

        getattr(datasets, torchvision_name)(data_dir, download=True)
        found = _find(name, data_dir)
    if found is None:
        raise FileNotFoundError(f"{name}: {_what_is_missing(name, data_dir)}; give the folder that holds it, or --download")
    version, folder = found
    names = version.read_names(_checked(folder / version.names, version))
    if len(names) != classes:
        raise ValueError(f"{folder / version.names}: {len(names)} class names, {classes} expected")
    train = _split([folder / file for file in version.train], version)
    test = _split([folder / version.test], version)
    return memory_dataset(name, train, test, names, mean, std, config)


def _find(name: str, data_dir: Path) -> tuple[Version, Path] | None:
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


def _checked(path: Path, version: Version) -> bytes:
    content = path.read_bytes()
    expected = version.md5.get(path.name)
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if expected is not None and found != expected:
        raise ValueError(f"{path} is damaged: its MD5 sum is {found}, the official one {expected}; fetch it again")
    return content


def _split(paths: list[Path], version: Version) -> MemorySplit:
    parts = []
    for path in paths:
        pixels, labels = version.read(_checked(path, version))
        expected = version.records.get(path.name, len(pixels))
        if not len(pixels) == len(labels) == expected:
            raise ValueError(f"{path}: {len(pixels)} images and {len(labels)} labels, {expected} expected")
        parts.append((pixels, labels))
    images = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    return MemorySplit(torch.from_numpy(images), torch.from_numpy(labels))


def _binary(label_bytes: int) -> Callable[[bytes], Records]:
    """Records of the binary version: labels (the last byte is the class), then the pixels."""

    def read(content: bytes) -> Records:
        size = label_bytes + 3072
        if len(content) % size:
            raise ValueError(f"a CIFAR binary file of {len(content)} bytes is cut off: records have {size} bytes")
        records = np.frombuffer(content, np.uint8).reshape(-1, size)
        return records[:, label_bytes:], records[:, label_bytes - 1]

    return read


def _lines(content: bytes) -> list[str]:
    return content.decode().split()


def _pickled(label_key: str) -> Callable[[bytes], Records]:
    def read(content: bytes) -> Records:
        batch = _unpickle(content)
        return batch["data"], np.asarray(batch[label_key])

    return read


def _pickled_names(key: str) -> Callable[[bytes], list[str]]:
    return lambda content: list(_unpickle(content)[key])


class _ArraysOnly(pickle.Unpickler):
    """Unpickles dictionaries, lists, strings, numbers and numpy arrays as Python 2 wrote them. A pickle can call whatever it
    names, so it gets these three names and no other."""

    known: dict[tuple[str, str], Callable[..., Any]] = {  # noqa: RUF012  (a table; nothing writes to it)
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: np.empty(0, np.uint8),  # filled by what follows
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): lambda kind, *_: np.dtype(kind, copy=True),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.known:
            raise pickle.UnpicklingError(f"a CIFAR file has no business with {module}.{name}")
        return self.known[module, name]


def _unpickle(content: bytes) -> dict[str, Any]:
    # numpy asks for latin1 where Python 2 wrote bytes.
    value: dict[str, Any] = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    return value


VERSIONS: dict[str, tuple[Version, ...]] = {
    "cifar10": (
        Version(
            folder="cifar-10-batches-py",
            train=tuple(f"data_batch_{i}" for i in range(1, 6)),
            test="test_batch",
            names="batches.meta",
            read=_pickled("labels"),
            read_names=_pickled_names("label_names"),
            md5={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
                "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
            },
        ),
        Version(
            folder="cifar-10-batches-bin",
            train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
            test="test_batch.bin",
            names="batches.meta.txt",
            read=_binary(label_bytes=1),
            read_names=_lines,
            md5={
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            },
        ),
    ),
    "cifar100": (
        Version(
            folder="cifar-100-python",
            train=("train",),
            test="test",
            names="meta",
            read=_pickled("fine_labels"),
            read_names=_pickled_names("fine_label_names"),
            md5={
                "train": "16019d7e3df5f24257cddd939b257f8d",
                "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
                "meta": "7973b15100ade9c7d40fb424638fde48",
            },
        ),
        Version(
            folder="cifar-100-binary",
            train=("train.bin",),
            test="test.bin",
            names="fine_label_names.txt",
            read=_binary(label_bytes=2),
            read_names=_lines,
            records={"train.bin": 50_000, "test.bin": 10_000},
        ),
    ),
}
