"""Views of images that are read from files: each image by itself, where it is read."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from ..common.batch import Batch
from ..common.data import LoaderOptions
from ..common.torchvision_shim import ensure_torchvision
from .dataset import DataSet, FileSplit, MapSplit
from .file_loader import FileLoader
from .multicrop import MultiCrop, full_steps

ensure_torchvision()

from torchvision.transforms.functional import pil_to_tensor  # noqa: E402


@dataclass(frozen=True)
class ViewsOfOne:
    """An RGB image -> its views, each (c, *size); draws from torch's global generator, which the reader seeds."""

    crops: MultiCrop

    def __call__(self, image: Image) -> list[Tensor]:
        pixels = pil_to_tensor(image if len(self.crops.mean) > 1 else image.convert("L"))[None].float() / 255
        numbers = torch.rand(1, self.crops.numbers, dtype=torch.float64)
        return [view[0] for view in self.crops(pixels, numbers)]


def joined(samples: list[list[Tensor]]) -> list[Tensor]:
    """Views of images -> images of views, each (b, c, *size)."""
    return [torch.stack(view) for view in zip(*samples, strict=True)]


class MultiCropFileLoader(FileLoader):
    """Batches of views, see `multicrop_loader`."""

    def __init__(self, split: FileSplit | MapSplit, dataset: DataSet, how: LoaderOptions, crops: MultiCrop) -> None:
        super().__init__(split, dataset, how, ViewsOfOne(crops), joined)
        self.crops, self.steps = crops, full_steps(self.samples, how.batch_size)

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        return islice(super().epoch(epoch, start), self.steps - start)

    def _black(self) -> Any:
        return [torch.zeros(1, self.shape[0], *view.size) for view in self.crops.views]
