"""Options of data sets and of augmentation. The names are those of `dynavit train`.

Nothing here imports torch, so that the command line can explain itself at once.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

Interpolation = Literal["bicubic", "bilinear", "nearest", "lanczos", "box", "hamming"]


@dataclass
class DataConfig:
    """Options for opening a data set.

    Attributes:
        download: fetch a data set that is missing, where torchvision can.
        strict: stop at an image that cannot be read, instead of leaving it out and counting it.
        image_size: side in pixels that images are brought to; the set's own (files: 224) if not given.
        val_fraction: part of train that is cut off for validation where a set has no validation split; 0 uses no validation.
        split_seed: of that cut; the same for all seeds of a comparison, so that they share the split.
        limit: use only so many training images, equally many of each class where possible; 0 uses all.
        workers: processes that read files; sets in memory need none.
        mean, std: of each channel of pixels in [0, 1]. If not given, those that the initial weights (init_from) were trained
            with, else the set's own; likewise image_size, crop_pct and interpolation of image files.
        crop_pct: image files: part of the shorter side that evaluation sees.
        interpolation: image files: how pixels are found when an image is resized.
        train_root, train_list, val_root, val_list: for `--data list`: folders, and text files with a `path label` per line.
        options: what else the data set takes, for sets that have options of their own.
    """

    download: bool = False
    strict: bool = False
    image_size: int | None = None
    val_fraction: float = 0.1
    split_seed: int = 0
    limit: int = 0
    workers: int = 2
    mean: list[float] | None = None
    std: list[float] | None = None
    crop_pct: float | None = None
    interpolation: Interpolation | None = None
    train_root: Path | None = None
    train_list: Path | None = None
    val_root: Path | None = None
    val_list: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.crop_pct is not None and not 0 < self.crop_pct <= 1:
            raise ValueError(f"loading.crop_pct={self.crop_pct}: a part of the shorter side, above 0 and up to 1")
        if self.interpolation is not None and self.interpolation not in get_args(Interpolation):
            known = ", ".join(get_args(Interpolation))
            raise ValueError(f"loading.interpolation={self.interpolation!r}: one of {known}")
        if any(not 0 < value < math.inf for value in self.std or ()):
            raise ValueError(f"loading.std={self.std}: deviations of pixels, each above 0")
        if any(not math.isfinite(value) for value in self.mean or ()):
            raise ValueError(f"loading.mean={self.mean}: means of pixels are finite numbers")


@dataclass
class AugmentConfig:
    """Options for augmenting training images.

    Attributes:
        recipe: light (shifted crop, flip; for small images), deit (timm's RandAugment and resized crops, for files), none.
            auto: light for sets in memory, deit for files.
        padding: light: how far the crop may shift, as a fraction of the side.
        flip: mirror half of the images; None: as fits the set (digits are not mirrored).
        auto_augment: deit: timm's policy string; '' uses colour jitter instead.
        erase: probability that a rectangle is erased (random erasing).
        mixup: strength of mixup, 0.8 in DeiT; 0 leaves it out.
        cutmix: strength of cutmix, 1.0 in DeiT; 0 leaves it out.
        label_smoothing: moved from the right class to all.
        repeats: visits to each image in an epoch, of fewer images (repeated augmentation; 3 in DeiT).
    """

    recipe: Literal["auto", "light", "deit", "none"] = "auto"
    padding: float = 0.125
    flip: bool | None = None
    auto_augment: str = "rand-m9-mstd0.5-inc1"
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    label_smoothing: float = 0.0
    repeats: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.padding <= 1:
            raise ValueError(f"augment.padding={self.padding}: a fraction of the side, from 0 to 1")
        if not 0 <= self.erase <= 1:
            raise ValueError(f"augment.erase={self.erase}: a probability, from 0 to 1")
        if self.repeats < 1:
            raise ValueError(f"augment.repeats={self.repeats}: each image that takes part is visited at least once")
