"""Models for images of a size: the one that is taken if none is named, and tokens that are neither too few nor too many.

The patches of a model for 8-pixel digits would cut a photograph into 12,544 tokens, and attention costs their square.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..common.registry import UnknownNameError
from .registry import create_model
from .size import check_size
from .stored_call import stored_call

Size = tuple[int, int]  # (height, width) or (rows, cols)

# The largest side in pixels that a model is taken for, if none is named. Two CPU cores can train each of them.
BY_SIDE = ((16, "vit_micro"), (64, "vit_mini"), (math.inf, "vit_photo"))

SMALL_IMAGE = 64  # pixels; below, a model's 16-pixel patches would leave next to no tokens
FEWEST, MOST = 4, 14  # tokens along a side that need no second thought
MANY = 400  # tokens; more than these, and than the model was made for, are only built if the user says so

TOKEN_OPTIONS = ("patch_size", "stem", "splits", "tokens")  # whoever gives one has decided


def model_for(image_size: Size | None) -> str:
    """The model that is taken if none is named.

    >>> [model_for((side, side)) for side in (8, 32, 224)]
    ['vit_micro', 'vit_mini', 'vit_photo']
    """
    return next(name for side, name in BY_SIDE if max(image_size or (1, 1)) <= side)


def options_for_images(name: str, image_size: Size, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `create_model`: img_size, if the model takes one, and the patches or splits that suit these images.

    Patches shrink where small images would leave next to no tokens, and grow where a model for small images gets large ones.

    Raises:
        ValueError: more than 400 tokens, and more than the model was made for, that the options given do not ask for.
    """
    call = stored_call({"name": name, **given})  # without weights
    check_size(call)
    with torch.device("meta"):  # only to look at it
        try:
            built = create_model(**call, img_size=image_size)
        except (TypeError, UnknownNameError):  # a model of timm or of a plug-in that takes images of any size
            return {}
        except ValueError:  # the patches do not divide the image
            built = create_model(name)
        own = create_model(**call)
    size: dict[str, Any] = {"img_size": list(image_size)}
    if any(_decides(option, given[option]) for option in TOKEN_OPTIONS if option in given):
        return size
    for_small = max(_input_size(own), default=SMALL_IMAGE + 1) <= SMALL_IMAGE
    fewer: Callable[[int], dict[str, Any]] | None = getattr(built, "options_for_fewer_tokens", None)
    if for_small and fewer is not None:
        return size | fewer(MOST)
    if patch := patch_size(built):
        too_few = max(image_size) <= SMALL_IMAGE and min(image_size) // max(patch) < FEWEST
        too_many = for_small and max(image_size) // min(patch) > MOST
        if (too_few or too_many) and (fits := fitting_patch(image_size)):
            return size | {"patch_size": fits}
    _check_count(name, image_size, built, own)
    return size


def fitting_patch(image_size: Size) -> int | None:
    """The smallest square patches that divide an image and give at most 14 tokens along its sides; None if all are too large.

    >>> [fitting_patch((side, side)) for side in (8, 28, 32, 64, 224, 97)]
    [1, 2, 4, 8, 16, None]
    """
    common = math.gcd(*image_size)
    fits = [side for side in range(1, common + 1) if common % side == 0 and max(image_size) // side <= MOST]
    return fits[0] if fits and min(image_size) // fits[0] >= FEWEST else None


def patch_size(model: nn.Module) -> Size | None:
    """(height, width) of the patches that a model cuts its images into; None if it does something else."""
    found = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    return (found, found) if isinstance(found, int) else found and (int(found[0]), int(found[1]))


def grids(model: nn.Module) -> list[Size]:
    """(rows, cols) of a model's tokens, for each exit of a cascade; [] where that is not known."""
    exits = getattr(model, "exits", None)
    grid = getattr(model, "grid_size", None) or getattr(getattr(model, "patch_embed", None), "grid_size", None)
    found = [getattr(exit, "grid", None) for exit in exits] if isinstance(exits, nn.ModuleList) else [grid]
    return [(int(grid[0]), int(grid[1])) for grid in found if grid]


def _decides(option: str, value: Any) -> bool:
    """Whether this says how many tokens there are. A group of options may be about other things alone."""
    return option != "tokens" or not isinstance(value, Mapping) or bool({"splits", "kind"} & value.keys())


def _input_size(model: nn.Module) -> tuple[int, ...]:
    """(height, width) that a model was made for; () if it does not say."""
    return tuple((getattr(model, "default_cfg", None) or {}).get("input_size", ())[1:])


def _check_count(name: str, image_size: Size, built: nn.Module, own: nn.Module) -> None:
    rows, cols = max(grids(built), default=(0, 0))
    if rows * cols <= max([MANY, *(math.prod(grid) for grid in grids(own))]):
        return
    ways = ["--loading.image_size 224 makes the images smaller"]
    if fits := fitting_patch(image_size):
        fewer = f"{image_size[0] // fits}x{image_size[1] // fits}"
        ways.insert(0, f"--model_options.patch_size {fits} makes {fewer}")
    if patch := patch_size(built):
        ways.append(f"--model_options.patch_size {patch[0]} says that you mean it")
    raise ValueError(
        f"{name} cuts images of {image_size[0]}x{image_size[1]} pixels into {rows}x{cols} = {rows * cols:,} tokens, and "
        f"attention costs their square: {', '.join(ways)}"
    )
