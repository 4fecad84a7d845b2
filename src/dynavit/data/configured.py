"""The options of `--loading` applied to a set of images, whoever opened it."""

from dataclasses import replace

from .config import DataConfig
from .dataset import DataSet, MemorySplit
from .memory import canvas_size
from .splits import arrange_splits


def configured(data: DataSet, config: DataConfig) -> DataSet:
    """Labels checked, validation cut from train if there is none, train limited, images of the wanted size. Notes tell of it.

    Once is enough, and twice does no harm.
    """
    if config.image_size is not None and config.image_size < 1:
        raise ValueError(f"{data.name}: image_size={config.image_size} is a side in pixels, at least 1")
    splits, notes = arrange_splits(data.name, data.splits, data.classes, config)
    size = (config.image_size, config.image_size) if config.image_size else data.image_size
    for stored in {split.size for split in splits.values() if isinstance(split, MemorySplit)} - {size}:
        way = "padded" if canvas_size(stored, size) == size else "resized"
        notes = (*notes, f"images of {stored[0]}x{stored[1]} pixels are {way} to {size[0]}x{size[1]}")
    return replace(data, splits=splits, image_size=size, notes=tuple(dict.fromkeys((*data.notes, *notes))))
