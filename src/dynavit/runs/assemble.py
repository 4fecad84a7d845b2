"""Configuration -> objects: what a run is made of."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .config import TrainConfig
from ..data.dataset import DataSet

SMALL_IMAGE = 64  # pixels; below, a model's 16-pixel patches would leave next to no tokens
SMALL_GRID = 8  # tokens along a side of a small image


def build_model(config: TrainConfig, data: DataSet) -> tuple[nn.Module, dict[str, Any]]:
    """A model for these data, with random weights from the seed, and the call of `create_model` that rebuilds it."""
    from ..models import create_model

    call = model_call(config, data)
    torch.manual_seed(config.seed)
    return create_model(**call), call


def model_call(config: TrainConfig, data: DataSet) -> dict[str, Any]:
    """The keyword arguments of `create_model` for a model with as many classes and channels as the data, of their size."""
    call: dict[str, Any] = {"name": config.model, "norm": config.norm, "norm_options": config.norm_options or None}
    call |= {"num_classes": len(data.classes), "in_chans": data.channels}
    call |= _size_options(config.model, data.image_size, config.model_options)
    return {key: value for key, value in (call | config.model_options).items() if value is not None}


def _size_options(model: str, image_size: tuple[int, int], given: Mapping[str, Any]) -> dict[str, Any]:
    """img_size, if the model takes one, and smaller patches for small images than a model for large ones comes with."""
    from ..models import create_model

    with torch.device("meta"):  # only to look at it
        try:
            built = create_model(model, img_size=image_size, **given)
        except TypeError:  # a model of timm that takes images of any size
            return {}
        except ValueError:  # the patches do not divide the image
            built = create_model(model)
    size: dict[str, Any] = {"img_size": list(image_size)}
    patch_size = getattr(getattr(built, "patch_embed", None), "patch_size", None)
    if max(image_size) <= SMALL_IMAGE and patch_size is not None and "patch_size" not in given:
        grid = min(image_size) // max(patch_size)
        if grid < SMALL_GRID // 2:
            size["patch_size"] = max(min(image_size) // SMALL_GRID, 1)
    return size


def prepared_as(data: DataSet, preprocess: Mapping[str, Any], run: object) -> DataSet:
    """The data set with images as the model of a run knows them, whatever size and colours it has of its own."""
    if data.channels != len(preprocess["mean"]):
        raise ValueError(f"{data.name} has {data.channels} channels, the model of {run} takes {len(preprocess['mean'])}")
    known: dict[str, Any] = {name: tuple(preprocess[name]) for name in ("image_size", "mean", "std")}
    return replace(data, **known)
