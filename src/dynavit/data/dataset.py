"""What an opened data set is. Small ones live in memory as bytes, large ones are lists of files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class MemorySplit:
    """(n, c, height, width) uint8 images and (n,) int64 labels."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

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
    """Images that something else keeps: `read(key)` gives an RGB image, or a ValueError that names it. Travels to workers."""

    read: Callable[[Any], "Image"]
    keys: Sequence[Any]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, index: Tensor) -> "MapSplit":
        return MapSplit(self.read, [self.keys[i] for i in index.tolist()], self.labels[index])


@dataclass(frozen=True)
class DataSet:
    """An opened data set.

    Attributes:
        splits: "train", and where there are such "val" and "test".
        image_size: (height, width) that loaders deliver.
        mean, std: per channel, of pixels in [0, 1].
        mirrored: whether a mirrored image keeps its class, the default of `augment.flip`.
        crop_pct: part of the shorter side that evaluation sees of image files; None: as fits their size.
        notes: what was decided while opening, for the user: a split that was cut, labels that were renumbered.
    """

    name: str
    splits: dict[str, MemorySplit | FileSplit | MapSplit]
    classes: list[str]
    image_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mirrored: bool = True
    notes: tuple[str, ...] = ()
    crop_pct: float | None = None

    @property
    def channels(self) -> int:
        return len(self.mean)
