"""Options of data sets and of augmentation. The names are those of `dynavit train`.

Nothing here imports torch, so that the command line can explain itself at once.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from ..common.fits import AtLeastOne, Count, Fraction, NotNegative, Pixels, Positive, Range, Seed, Share, check_fits

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
        val_limit: likewise of the validation images; accuracies then have the error of so few.
        test_limit: likewise of the test images.
        workers: processes that read files; sets in memory need none.
        mean: of each channel of pixels in [0, 1]. If not given, that which the initial weights (init_from) were trained with,
            else the set's own; likewise std, image_size, and crop_pct and interpolation of image files.
        std: of each channel, likewise.
        crop_pct: image files: part of the shorter side that evaluation sees.
        interpolation: image files: how pixels are found when an image is resized.
        train_root: for `--data list`: the folder that paths in train_list start from.
        train_list: for `--data list`: a text file with a `path label` per line.
        val_root: for `--data list`: the folder that paths in val_list start from.
        val_list: for `--data list`: the same for validation.
        options: what else the data set takes, for sets that have options of their own.
    """

    download: bool = False
    strict: bool = False
    image_size: Pixels | None = None
    val_fraction: Share = 0.1
    split_seed: Seed = 0
    limit: Count = 0
    val_limit: Count = 0
    test_limit: Count = 0
    workers: Annotated[int, Range(least=0, most=1024)] = 2
    mean: list[float] | None = None
    std: list[Positive] | None = None
    crop_pct: Annotated[float, Range(above=0, most=1)] | None = None
    interpolation: Interpolation | None = None
    train_root: Path | None = None
    train_list: Path | None = None
    val_root: Path | None = None
    val_list: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fits(DataConfig, self, "loading")


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
    padding: Fraction = 0.125
    flip: bool | None = None
    auto_augment: str = "rand-m9-mstd0.5-inc1"
    erase: Fraction = 0.0
    mixup: NotNegative = 0.0
    cutmix: NotNegative = 0.0
    label_smoothing: Fraction = 0.0
    repeats: AtLeastOne = 1

    def __post_init__(self) -> None:
        check_fits(AugmentConfig, self, "augment")
