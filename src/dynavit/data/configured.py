"""The options of `--loading` applied to a set of images, whoever opened it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
    given = _given_preparation(config)
    for name in {"mean", "std"} & given.keys():
        if len(given[name]) != data.channels:
            raise ValueError(
                f"loading.{name} has {len(given[name])} numbers, the images of {data.name} have {data.channels} channels"
            )
    return replace(data, splits=splits, image_size=size, notes=tuple(dict.fromkeys((*data.notes, *notes))), **given)


def prepared_for_weights(data: DataSet, known: Mapping[str, Any], config: DataConfig) -> DataSet:
    """The images prepared as they were for weights that a training starts from, except for what `config` says itself.

    `known` is a description as of `preprocess`, or a part of one. Images in memory keep their size: they are small, and to
    enlarge them is a choice. Colours are taken over where there are as many channels.
    """
    wanted = {name: tuple(known[name]) for name in ("mean", "std") if len(known.get(name, ())) == data.channels}
    if not any(isinstance(split, MemorySplit) for split in data.splits.values()):
        wanted |= {name: known[name] for name in ("crop_pct", "interpolation") if known.get(name) is not None}
        if config.image_size is None and "image_size" in known:
            wanted["image_size"] = tuple(known["image_size"])
    return replace(data, **{**wanted, **_given_preparation(config)})


def describe_preparation(data: DataSet) -> str:
    """How images become inputs, for the user."""
    size = f"{data.image_size[0]}x{data.image_size[1]} pixels"
    colours = [f"{name} {', '.join(f'{value:.4g}' for value in getattr(data, name))}" for name in ("mean", "std")]
    files = [] if data.crop_pct is None else [f"{data.crop_pct:g} of the shorter side", data.interpolation]
    return "; ".join([size, *files, *colours])


def _given_preparation(config: DataConfig) -> dict[str, Any]:
    given: dict[str, Any] = {"mean": config.mean and tuple(config.mean), "std": config.std and tuple(config.std)}
    given |= {"crop_pct": config.crop_pct, "interpolation": config.interpolation}
    return {name: value for name, value in given.items() if value is not None}
