"""PIL images to normalised tensors, (3, height, width), by timm's and torchvision's transforms.

Random ones draw from Python's, numpy's and torch's global generators, which the loader seeds for each sample.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any

from PIL import Image
from torch import Tensor

from ..common.torchvision_shim import ensure_torchvision
from .config import AugmentConfig
from .crop import RandomCrop

ensure_torchvision()  # before the first import of timm

from timm.data import auto_augment  # noqa: E402
from timm.data.random_erasing import RandomErasing  # noqa: E402
from timm.data.transforms import ResizeKeepRatio  # noqa: E402
from timm.data.transforms_factory import create_transform  # noqa: E402
from torchvision import transforms  # noqa: E402

Transform = Callable[[Image.Image], Tensor]
Size = tuple[int, int]  # height, width
Channels = tuple[float, ...]

INTERPOLATION = "bicubic"
ERASE_WITH = "pixel"  # noise, as in DeiT
THUMBNAIL = 64  # images up to this side have no border to spare


def train_transform(
    image_size: Size,
    augment: AugmentConfig,
    mean: Channels,
    std: Channels,
    crop_pct: float | None = None,
    interpolation: str = INTERPOLATION,
) -> Transform:
    """Augmentation and normalisation of a training image; `auto` is deit for files. `crop_pct` concerns `none` alone."""
    if augment.recipe in ("auto", "deit"):
        return _deit(image_size, augment, mean, std, interpolation)
    if augment.recipe == "none":
        return transforms.Compose([eval_transform(image_size, mean, std, crop_pct, interpolation), *_erasing(augment)])
    padding = [round(augment.padding * side) for side in reversed(image_size)]  # left and right, top and bottom
    return transforms.Compose(
        [
            ResizeKeepRatio(image_size, interpolation=interpolation),  # covers image_size, no more
            transforms.RandomCrop(image_size, padding),
            *([] if augment.flip is False else [transforms.RandomHorizontalFlip()]),
            transforms.ToTensor(),
            transforms.Normalize(mean, std),
            *_erasing(augment),
        ]
    )


def eval_transform(
    image_size: Size, mean: Channels, std: Channels, crop_pct: float | None = None, interpolation: str = INTERPOLATION
) -> Transform:
    """Resize so that the crop from the middle covers `crop_pct` of the shorter side; crop. One mean: the image becomes grey.

    `eval_transform(**describe_eval(...))` is the same, so that a description stored with a model brings its transform back.
    """
    height, width = (int(side / (crop_pct or _crop_pct(image_size))) for side in image_size)
    if height == width:  # rounds as evaluation on ImageNet usually does
        resize = transforms.Resize(height, transforms.InterpolationMode(interpolation))
    else:
        resize = ResizeKeepRatio((height, width), interpolation=interpolation)
    return transforms.Compose(
        [
            *([transforms.Grayscale()] if len(mean) == 1 else []),
            resize,
            transforms.CenterCrop(image_size),
            transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ]
    )


def describe_eval(
    image_size: Size, mean: Channels, std: Channels, crop_pct: float | None = None, interpolation: str = INTERPOLATION
) -> dict[str, Any]:
    """Arguments for `eval_transform`, ready for JSON."""
    return {
        "image_size": list(image_size),
        "crop_pct": crop_pct or _crop_pct(image_size),
        "interpolation": interpolation,
        "mean": list(mean),
        "std": list(std),
    }


def _deit(image_size: Size, augment: AugmentConfig, mean: Channels, std: Channels, interpolation: str) -> Transform:
    """Touvron et al., ICML 2021, arXiv 2012.12877. timm leaves colour jitter out where a policy is given."""
    try:
        transform = create_transform(
            image_size,
            is_training=True,
            hflip=0.0 if augment.flip is False else 0.5,
            auto_augment=augment.auto_augment or None,
            interpolation=interpolation,
            re_prob=augment.erase,
            re_mode=ERASE_WITH,
            mean=mean,
            std=std,
        )
    except (AssertionError, KeyError, ValueError) as error:
        raise ValueError(
            f"augment.auto_augment={augment.auto_augment!r}: timm does not know this policy ({error}); "
            f"DeiT's is 'rand-m9-mstd0.5-inc1', '' leaves it out"
        ) from error
    first, *others = transform.transforms
    transform.transforms = [RandomCrop(image_size, first, interpolation), *others]
    for step in transform.transforms:  # RandAugment and AugMix have operations, AutoAugment has policies of some each
        for operation in [*getattr(step, "ops", ()), *chain(*getattr(step, "policy", ()))]:
            if operation.aug_fn is auto_augment.posterize:
                operation.aug_fn = _posterize
    return transform


def _posterize(image: Image.Image, bits: int, **options: Any) -> Image.Image:
    """timm asks for 0 bits at full strength. That was a black image until Pillow 13, which refuses."""
    return auto_augment.posterize(image, bits) if bits > 0 else Image.new(image.mode, image.size)


def _erasing(augment: AugmentConfig) -> list[Callable[[Tensor], Tensor]]:
    return [RandomErasing(augment.erase, mode=ERASE_WITH, device="cpu")] if augment.erase else []


def _crop_pct(image_size: Size) -> float:
    return 1.0 if min(image_size) <= THUMBNAIL else 0.875
