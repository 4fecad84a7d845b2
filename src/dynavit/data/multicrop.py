"""Several views of each image: random crops of two sizes with random colours (Caron et al. 2020, arXiv 2006.09882).

| step, in this order | global 1 | global 2 | local |
|---|---|---|---|
| crop, resized; mirrored half of the time | large | large | small |
| brightness, contrast, saturation, hue with p | 0.8 | 0.8 | 0.8 |
| grey with p | 0.2 | 0.2 | 0.2 |
| blur with p | 1.0 | 0.1 | 0.5 |
| negative of bright pixels with p | 0 | 0.2 | 0 |
| mean and deviation of the data set | x | x | x |

These are DINO's numbers (Caron et al., ICCV 2021, arXiv 2104.14294), but for the order of the four colours, which is fixed here
and random there. The blur shrinks with the images, and images below 34 pixels are not blurred: it would leave nothing of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..common.batch import Batch
from ..common.data import Loader, LoaderOptions
from .colours import blurred, brightened, contrasted, greyed, saturated, solarised, turned_in_hue
from .dataset import DataSet, MemorySplit
from .memory import normalise, pad
from .memory_loader import MemoryLoader
from .resized_crop import NUMBERS as BOX
from .resized_crop import random_boxes, resized_crops
from .sampling import uniform

JITTER, GREY = 0.8, 0.2  # how often
BRIGHTNESS, CONTRAST, SATURATION, HUE = 0.4, 0.4, 0.2, 0.1  # how much at most, up and down
RADIUS = (0.1, 2.0)  # of the blur at 224 pixels
LEAST_RADIUS = 0.3  # of the strongest blur; below, there is none
PER_VIEW = BOX + 10  # random numbers for a view: its box, mirror, jitter, four colours, grey, blur, radius, negative

Size = tuple[int, int]


@dataclass(frozen=True)
class View:
    """One view: its (height, width), the part of the image's area that it shows, how often it is blurred and solarised."""

    size: Size
    scale: tuple[float, float]
    blur: float
    solarise: float = 0.0


def dino_views(
    image_size: Size,
    local_size: Size,
    local_crops: int,
    global_scale: tuple[float, float],
    local_scale: tuple[float, float],
) -> tuple[View, ...]:
    """Two global views, then the local ones."""
    large = (View(image_size, global_scale, 1.0), View(image_size, global_scale, 0.1, 0.2))
    return large + (View(local_size, local_scale, 0.5),) * local_crops


@dataclass(frozen=True)
class MultiCrop:
    """(b, c, h, w) images in [0, 1] and (b, `numbers`) uniform random numbers -> a list of views, each (b, c, *its size).

    `colours` is a factor on how much colours change, and on how often they are taken away or turned to their negative.
    """

    views: tuple[View, ...]
    mirror: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    colours: float = 1.0

    @property
    def numbers(self) -> int:
        return PER_VIEW * len(self.views)

    @property
    def largest_radius(self) -> float:
        """Of the blur, in pixels of every view; 0 where there is none."""
        radius = RADIUS[1] * max(self.views[0].size) / 224
        return radius if radius >= LEAST_RADIUS else 0.0

    def __call__(self, images: Tensor, numbers: Tensor) -> list[Tensor]:
        parts = zip(self.views, numbers.split(PER_VIEW, 1), strict=True)
        return [self._view(view, images, own[:, :BOX], own[:, BOX:].to(images.dtype)) for view, own in parts]

    def _view(self, view: View, images: Tensor, box: Tensor, numbers: Tensor) -> Tensor:
        mirror, jitter, *colours, grey, blur, radius, negative = numbers.unbind(1)
        boxes = random_boxes(box, (images.shape[-2], images.shape[-1]), view.scale)
        x = resized_crops(images, boxes, view.size, (mirror < 0.5) & self.mirror)
        if self.colours:
            x = _jittered(x, torch.where(jitter < JITTER, self.colours, 0.0), colours)
            x = greyed(x, grey < GREY * self.colours)
        if largest := self.largest_radius:
            least = RADIUS[0] / RADIUS[1] * largest
            x = blurred(x, torch.where(blur < view.blur, least + (largest - least) * radius, 0.0))
        if view.solarise and self.colours:
            x = solarised(x, negative < view.solarise * self.colours)
        mean, std = (torch.tensor(values, dtype=x.dtype, device=x.device) for values in (self.mean, self.std))
        return x.sub_(mean[:, None, None]).div_(std[:, None, None])


def _jittered(images: Tensor, strength: Tensor, numbers: Sequence[Tensor]) -> Tensor:
    """By a strength (b,): at 0 the factors are 1 and the turn is 0."""
    brightness, contrast, saturation, hue = (strength * (2 * number - 1) for number in numbers)
    images = brightened(images, 1 + BRIGHTNESS * brightness)
    images = contrasted(images, 1 + CONTRAST * contrast)
    images = saturated(images, 1 + SATURATION * saturation)
    return turned_in_hue(images, HUE * hue)


def multicrop_loader(data: DataSet, split: str, how: LoaderOptions, views: Sequence[View], colours: float = 1.0) -> Loader:
    """Batches whose inputs are lists of views. Of the options of augmentation `flip` counts; the last step of an epoch is left
    out where it is not full."""
    for name in ("erase", "mixup", "cutmix", "label_smoothing"):
        if getattr(how.augment, name):
            raise ValueError(f"augment.{name} is for images with labels, and views have none; leave it out")
    mirror = data.mirrored if how.augment.flip is None else how.augment.flip
    crops = MultiCrop(tuple(views), mirror, data.mean, data.std, colours)
    chosen = data.splits[split]
    if isinstance(chosen, MemorySplit):
        return MultiCropLoader(chosen, data, how, crops)
    from .multicrop_files import MultiCropFileLoader  # brings timm and torchvision, which sets in memory do without

    return MultiCropFileLoader(chosen, data, how, crops)


def full_steps(samples: int, batch_size: int) -> int:
    return max(1, samples // batch_size)


class MultiCropLoader(MemoryLoader):
    """Views of images in memory, a whole batch at once."""

    def __init__(self, split: MemorySplit, dataset: DataSet, how: LoaderOptions, crops: MultiCrop) -> None:
        super().__init__(split, dataset, how)
        self.crops, self.steps = crops, full_steps(self.samples, how.batch_size)

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        return islice(super().epoch(epoch, start), self.steps - start)

    def _inputs(self, index: Tensor, draws: Tensor, epoch: int) -> Any:
        images = pad(self.images.index_select(0, index), self.canvas)
        images = normalise(images, torch.zeros_like(self.mean), torch.ones_like(self.std))  # bytes to [0, 1]
        return self.crops(images, uniform(self.how.seed, epoch, draws, self.crops.numbers))
