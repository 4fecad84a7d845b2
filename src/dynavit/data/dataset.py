"""Opened data sets of images with classes. Small ones live in memory as bytes, large ones are lists of files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..common.data import Loader, LoaderOptions

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class MemorySplit:
    """(n, c, height, width) uint8 images and (n,) int64 labels."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.dim() != 4:
            raise ValueError(
                f"images in memory are bytes, uint8 of shape (n, channels, height, width), not {images.dtype} of shape "
                f"{tuple(images.shape)}"
            )
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise ValueError(
                f"labels of {len(images)} images are class numbers, int64 of shape ({len(images)},), not {labels.dtype} of "
                f"shape {tuple(labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) as stored."""
        height, width = self.images.shape[-2:]
        return height, width

    def subset(self, index: Tensor) -> "MemorySplit":
        return MemorySplit(self.images[index], self.labels[index])


@dataclass(frozen=True)
class FileSplit:
    """Paths of images and their labels. As strings: a million Path objects take four times the memory."""

    paths: Sequence[str]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, index: Tensor) -> "FileSplit":
        return FileSplit([self.paths[i] for i in index.tolist()], self.labels[index])


@dataclass(frozen=True)
class MapSplit:
    """Images that something else keeps: `read(key)` gives an RGB image, or a ValueError that names it. Workers get both."""

    read: Callable[[Any], "Image"]
    keys: Sequence[Any]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, index: Tensor) -> "MapSplit":
        return MapSplit(self.read, [self.keys[i] for i in index.tolist()], self.labels[index])


@dataclass(frozen=True)
class DataSet:
    """Images with classes, as `common.data.Data` asks.

    Attributes:
        splits: "train", and where there are such "val" and "test".
        image_size: (height, width) that loaders deliver.
        mean, std: per channel, of pixels in [0, 1].
        mirrored: whether a mirrored image keeps its class, the default of `augment.flip`.
        crop_pct: part of the shorter side that evaluation sees of image files; None: as fits their size.
        interpolation: how image files are resized.
        notes: decisions taken while opening, for the user: a split that was cut, images that are padded.
        task: the task that fits.
    """

    name: str
    splits: Mapping[str, MemorySplit | FileSplit | MapSplit]
    classes: list[str]
    image_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mirrored: bool = True
    notes: tuple[str, ...] = ()
    crop_pct: float | None = None
    task: str = "classification"
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError(f"{self.name}: mean has {len(self.mean)} channels, std has {len(self.std)}")
        for split, images in self.splits.items():
            if not isinstance(images, MemorySplit | FileSplit | MapSplit):
                raise ValueError(
                    f"{self.name}: the split {split!r} is a {type(images).__name__}; a DataSet is made of MemorySplit, "
                    "FileSplit or MapSplit"
                )
            if isinstance(images, MemorySplit) and images.images.shape[1] != self.channels:
                raise ValueError(
                    f"{self.name}: images of the split {split!r} have {images.images.shape[1]} channels, mean and std have "
                    f"{self.channels}"
                )

    @property
    def channels(self) -> int:
        return len(self.mean)

    def loader(self, split: str, how: LoaderOptions) -> Loader:
        """Batches of (b, c, height, width) images and (b,) labels, or (b, classes) probabilities if training mixes them."""
        chosen = self.splits[split]
        if isinstance(chosen, MemorySplit):
            from .memory_loader import MemoryLoader

            return MemoryLoader(chosen, self, how)
        from .file_loader import FileLoader  # brings timm and torchvision, which sets in memory do without

        return FileLoader(chosen, self, how)

    def describe(self) -> dict[str, Any]:
        """Names of classes, and how an image file becomes an input."""
        from .preprocess import describe_preprocessing

        return {"classes": list(self.classes), "preprocess": describe_preprocessing(self)}

    def prepared_as(self, facts: Mapping[str, Any], user: object) -> "DataSet":
        """The same images in the size and colours that a model knows, if there are as many classes and channels.

        A `crop_pct` of their own stays: such files are cut already.
        """
        classes, known = facts.get("classes", self.classes), facts["preprocess"]
        if len(self.classes) != len(classes):
            raise ValueError(f"{self.name} has {len(self.classes)} classes, the model of {user} tells {len(classes)} apart")
        if self.channels != len(known["mean"]):
            raise ValueError(f"{self.name} has {self.channels} channels, the model of {user} takes {len(known['mean'])}")
        image_size, mean, std = (tuple(known[name]) for name in ("image_size", "mean", "std"))
        crop_pct = self.crop_pct if self.crop_pct is not None else known.get("crop_pct")
        interpolation = known.get("interpolation", self.interpolation)
        return replace(self, image_size=image_size, mean=mean, std=std, crop_pct=crop_pct, interpolation=interpolation)

    def subset(self, split: str, index: Tensor) -> "DataSet":
        """The same with only the images (n,) of this split; other splits stay."""
        return replace(self, splits={**self.splits, split: self.splits[split].subset(index)})
