"""Data sets by timm's scheme strings, as far as their samples are numbered.

    torch/cifar10    torchvision's, through timm         hfds/user/name   Hugging Face's, or a folder of files it can read
    wds/             tar files as of webdataset, in data_dir

Streams are refused: resuming a run exactly, and augmentation that does not depend on the number of processes, need to know
which sample is which. Tar files are on disk and can be numbered, so they are no streams here.
"""

from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ..common.registry import nearest_match_error
from ..common.torchvision_shim import ensure_torchvision
from .config import DataConfig
from .dataset import DataSet, MapSplit
from .folder import photo_data_set
from .hub import open_hub
from .read_image import as_rgb, read_image
from .tar_shards import open_shards

STREAMS = {"tfds": "tensorflow-datasets", "hfids": "Hugging Face's iterable data sets"}
TEST_ONLY = ("cifar10", "cifar100", "mnist", "kmnist", "fashion_mnist", "qmnist")  # they come as train and test


def open_scheme(name: str, data_dir: Path | None, config: DataConfig) -> DataSet:
    scheme, _, rest = name.partition("/")
    if scheme in STREAMS:
        raise ValueError(
            f"data {name}: {STREAMS[scheme]} come as a stream, and exact resumption needs numbered samples; "
            f"write them into folders (data folder), tar files (data wds/), or use hfds/"
        )
    openers = {"torch": open_torchvision, "hfds": open_hub, "wds": open_shards}
    if scheme not in openers:
        raise nearest_match_error("scheme of data sets", scheme, [*openers, *STREAMS])
    return openers[scheme](rest, data_dir, config)


def open_torchvision(name: str, data_dir: Path | None, config: DataConfig) -> DataSet:
    """One of the sets that `timm.data.create_dataset("torch/...")` knows."""
    if data_dir is None:
        raise ValueError(f"data torch/{name} needs data_dir, the folder that torchvision keeps it in")
    second = "test" if name.lower() in TEST_ONLY else "val"
    kept = {split: _create(name, data_dir, split, config) for split in ("train", second)}
    classes = _class_names(name, kept["train"])
    if classes != _class_names(name, kept[second]):
        raise ValueError(f"data torch/{name}: train and {second} have different classes")
    splits = {
        split: MapSplit(_TorchvisionImages(name, images), range(len(images)), _labels(name, images))
        for split, images in kept.items()
    }
    return photo_data_set(f"torch/{name}", splits, classes, config, mirrored="mnist" not in name)


def _create(name: str, data_dir: Path, split: str, config: DataConfig) -> Any:
    ensure_torchvision()
    from timm.data.dataset_factory import create_dataset

    try:
        return create_dataset(
            f"torch/{name}", str(data_dir), split="train" if split == "train" else "val", download=config.download
        )
    except AssertionError as error:
        raise ValueError(f"data torch/{name}: {error}") from error
    except RuntimeError as error:
        hint = "" if config.download else "; --download fetches it where torchvision can"
        raise ValueError(
            f"data torch/{name}, split {split}: torchvision finds nothing in {data_dir} ({error}){hint}"
        ) from error


def _labels(name: str, images: Any) -> torch.Tensor:
    if not hasattr(images, "targets"):
        raise ValueError(
            f"data torch/{name}: torchvision has no list of its labels, and reading all images for them takes too long"
        )
    return torch.as_tensor(images.targets).reshape(len(images), -1)[:, 0]  # QMNIST has more columns, the class first


def _class_names(name: str, images: Any) -> list[str]:
    """Some sets have several words for a class, some have none."""
    names = getattr(images, "classes", None) or range(int(_labels(name, images).max()) + 1)
    return [", ".join(entry) if isinstance(entry, tuple) else str(entry) for entry in names]


class _TorchvisionImages:
    """Reads by number, also in a worker."""

    def __init__(self, name: str, images: Any) -> None:
        self.name, self.images = name, images
        if hasattr(images, "loader"):  # sets of files; torchvision's own would open files of any format
            images.loader = read_image

    def __call__(self, number: int) -> Image.Image:
        try:
            return as_rgb(self.images[number][0])
        except Exception as error:  # a broken file makes decoders stumble in any way
            raise ValueError(f"cannot read sample {number} of torch/{self.name}: {error}") from error
