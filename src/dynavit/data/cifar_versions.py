"""The official forms of CIFAR-10 and CIFAR-100: their files, how these are read, and their MD5 sums.

The sums of the binary version of CIFAR-100 are not known to us; the number of its images is.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Records = tuple[np.ndarray, np.ndarray]  # (n, 3072) uint8 pixels, channel by channel, and (n,) labels


class Version(NamedTuple):
    """One of the official forms of a data set.

    Attributes:
        folder: its official name.
        train, test: files of images.
        names: file of class names.
        read: bytes of such a file -> images and labels.
        read_names: bytes of `names` -> class names.
    """

    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    read: Callable[[bytes], Records]
    read_names: Callable[[bytes], list[str]]


def _binary(label_bytes: int) -> Callable[[bytes], Records]:
    """Records of the binary version: labels (the last byte is the class), then the pixels."""

    def read(content: bytes) -> Records:
        size = label_bytes + 3072
        if len(content) % size:
            raise ValueError(f"{len(content)} bytes are no multiple of {size}, the size of a record: the file is cut off")
        records = np.frombuffer(content, np.uint8).reshape(-1, size)
        return records[:, label_bytes:], records[:, label_bytes - 1]

    return read


def _lines(content: bytes) -> list[str]:
    return content.decode().split()


def _pickled(label_key: str) -> Callable[[bytes], Records]:
    """Records of the python version: a dictionary of arrays."""

    def read(content: bytes) -> Records:
        batch = unpickle(content)
        return batch["data"], np.asarray(batch[label_key])

    return read


def _pickled_names(key: str) -> Callable[[bytes], list[str]]:
    return lambda content: list(unpickle(content)[key])


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
            raise ValueError(f"the pickle asks for {module}.{name}, which no CIFAR file needs")
        return self.known[module, name]


def unpickle(content: bytes) -> dict[str, Any]:
    # numpy asks for latin1 where Python 2 wrote bytes.
    value: dict[str, Any] = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    return value


_FIVE = tuple(f"data_batch_{i}" for i in range(1, 6))
_FIVE_BIN = tuple(f"{file}.bin" for file in _FIVE)

VERSIONS = {
    "cifar10": (
        Version("cifar-10-batches-py", _FIVE, "test_batch", "batches.meta", _pickled("labels"), _pickled_names("label_names")),
        Version("cifar-10-batches-bin", _FIVE_BIN, "test_batch.bin", "batches.meta.txt", _binary(label_bytes=1), _lines),
    ),
    "cifar100": (
        Version("cifar-100-python", ("train",), "test", "meta", _pickled("fine_labels"), _pickled_names("fine_label_names")),
        Version("cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", _binary(label_bytes=2), _lines),
    ),
}
MD5 = {  # file: its sum
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
IMAGES = {"train.bin": 50_000, "test.bin": 10_000}  # file: how many, where there is no sum
