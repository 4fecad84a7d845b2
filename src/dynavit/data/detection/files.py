"""Image files with annotations, arranged into splits as `--loading` says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from PIL import Image
from torch import Tensor

from ..config import DataConfig
from ..folder import PHOTO_MEAN, PHOTO_STD
from ..read_image import read_image
from ..sampling import uniform
from .coco_file import CocoFile
from .dataset import DetectionData, DetectionSplit, require_masks, sizes_of
from .record import Record
from .transform import Preparation

CHECKED = 1000  # paths looked up while opening; on a network drive all of them would take long
SMALLEST_SIDE = 32  # of images that are trained on
SHORT, LONG = 800, 1333  # usual for COCO


@dataclass(frozen=True)
class Files:
    """Keys are records, whose `file` is the path of the image."""

    quick: ClassVar[bool] = False

    def record(self, key: Record) -> Record:
        return key

    def read(self, key: Record) -> tuple[Image.Image, Record]:
        """As the pixels are stored: COCO counts them so, whatever EXIF says."""
        return read_image(key.file, as_stored=True), key


def placed(found: CocoFile, folder: Path) -> list[Record]:
    """The records of an annotation file with the paths of their images; the first ones are looked up."""
    records = [replace(record, file=str(folder / record.name)) for record in found.records]
    for record in records[:CHECKED]:
        if not Path(record.file).is_file():
            raise ValueError(f"there is no image {record.file}, which image {record.id} of the annotations names")
    return records


def as_split(records: Sequence[Record]) -> DetectionSplit:
    return DetectionSplit(Files(), list(records), sizes_of(records))


def file_data(
    name: str,
    records: Mapping[str, Sequence[Record]],
    classes: list[str],
    category_ids: list[int],
    config: DataConfig,
    *,
    short: int | None,
    long: int | None,
    masks: bool,
    keep_empty: bool,
    eval_batch: int,
    notes: Sequence[str] = (),
    caution: str = "",
) -> DetectionData:
    """A data set of image files: validation cut from train if there is none, and unusable images left out of the training."""
    check_config(name, config)
    said = list(notes)
    arranged = {split: list(found) for split, found in records.items()}
    if "train" in arranged and "val" not in arranged and config.val_fraction:
        kept, held = cut(len(arranged["train"]), config.val_fraction, config.split_seed)
        said.append(f"validation: {len(held)} of {len(kept) + len(held)} training images, split_seed={config.split_seed}")
        arranged["val"] = [arranged["train"][place] for place in held]
        arranged["train"] = [arranged["train"][place] for place in kept]
    if "train" in arranged:
        arranged["train"], dropped = trainable(arranged["train"], keep_empty, masks)
        said += dropped
        if not arranged["train"]:
            raise ValueError(f"{name}: no training image is left: {'; '.join(dropped)}")
    splits, limited = limit({split: as_split(found) for split, found in arranged.items() if found}, config)
    data = DetectionData(
        name,
        splits,
        classes,
        category_ids,
        preparation(config, short, long),
        masks,
        eval_batch=eval_batch,
        notes=(*said, *limited, *([caution] if caution else ())),
        caution=caution,
    )
    if masks:
        require_masks(name, splits)
    return data


def preparation(config: DataConfig, short: int | None, long: int | None) -> Preparation:
    """ImageNet's colours, unless `--loading` names others."""
    mean, std = tuple(config.mean or PHOTO_MEAN), tuple(config.std or PHOTO_STD)
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) != 3:
            raise ValueError(f"loading.{name} has {len(numbers)} numbers, images with boxes have 3 channels")
    for name, side in (("short", short), ("long", long)):
        if side is not None and side < 1:
            raise ValueError(f"loading.options.{name}={side} is a side in pixels, at least 1")
    return Preparation(short, long, mean, std, config.interpolation or "bilinear")


def check_config(name: str, config: DataConfig) -> None:
    if config.image_size is not None:
        raise ValueError(
            f"{name}: images with boxes keep their proportions; in place of image_size say --loading.options.short, and "
            "--loading.options.long for the limit of the longer side"
        )
    if config.crop_pct is not None:
        raise ValueError(f"{name}: images with boxes are not cut; leave crop_pct out")


def cut(images: int, fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Places that stay, and those that are held back: at least one, as long as one stays."""
    wanted = min(max(round(fraction * images), 1), images - 1)
    order = uniform(seed, 0, torch.arange(images), 1)[:, 0].argsort()
    held = order[:wanted].sort().values
    return sorted(set(range(images)) - set(held.tolist())), held.tolist()


def trainable(records: Sequence[Record], keep_empty: bool, masks: bool) -> tuple[list[Record], list[str]]:
    """Images that are trained on, and what is to be said about the others. Where masks are learned, an image of objects without
    any is left out even with `keep_empty`: they would be taught as background."""
    large = [record for record in records if min(record.height, record.width) >= SMALLEST_SIDE]
    shown = [record for record in large if not (masks and record.usable.any()) or record.learnable(masks).any()]
    full = [record for record in shown if keep_empty or record.usable.any()]
    empty = sum(bool(record.crowd.all()) for record in shown) if not keep_empty else 0
    counts = {
        f"images with a side below {SMALLEST_SIDE} pixels": len(records) - len(large),
        "images none of whose objects has a mask": len(large) - len(shown),
        "images without boxes (loading.options.keep_empty keeps them)": empty,
        "images none of whose boxes can be learned": len(shown) - len(full) - empty,
        "boxes that lie outside of their image, have no area or a side below 1 pixel": sum(
            int((~record.usable & ~record.crowd).sum()) for record in large
        ),
    }
    return full, [f"training leaves out {count} {what}" for what, count in counts.items() if count]


def limit(splits: Mapping[str, DetectionSplit], config: DataConfig) -> tuple[dict[str, DetectionSplit], list[str]]:
    """At most as many images of each split as `--loading` says, drawn with split_seed."""
    limited, notes = dict(splits), []
    limits = {"train": ("training", config.limit), "val": ("validation", config.val_limit), "test": ("test", config.test_limit)}
    for split, (use, most) in limits.items():
        if split in limited and 0 < most < (images := len(limited[split])):
            limited[split] = limited[split].subset(_some(images, most, config.split_seed))
            notes.append(f"{use} uses {most} of {images} images")
    return limited, notes


def _some(images: int, most: int, seed: int) -> Tensor:
    return uniform(seed, 1, torch.arange(images), 1)[:, 0].argsort()[:most].sort().values
