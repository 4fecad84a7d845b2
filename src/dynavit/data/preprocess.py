"""From an image file to what a model was trained on. Described by a dict that a run stores, so that it needs no data set.

{"kind": "files",  image_size, crop_pct, interpolation, mean, std}    as for a set of files: resize, crop from the middle
{"kind": "memory", image_size, mean, std}                             as for a set in memory: the whole image, resized
"""

from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .dataset import DataSet, MemorySplit


def describe_preprocessing(data: DataSet) -> dict[str, Any]:
    """The description for images like those of this data set."""
    if isinstance(next(iter(data.splits.values())), MemorySplit):
        return {"kind": "memory", "image_size": list(data.image_size), "mean": list(data.mean), "std": list(data.std)}
    from .transforms import describe_eval

    return {"kind": "files", **describe_eval(data.image_size, data.mean, data.std)}


def preprocess(path: str | PathLike[str], description: dict[str, Any]) -> Tensor:
    """(channels, height, width) of one image file."""
    from .read_image import read_image

    image = read_image(path)
    options = {name: value for name, value in description.items() if name != "kind"}
    if description["kind"] == "files":
        from .transforms import eval_transform

        return eval_transform(**options)(image)
    height, width = options["image_size"]
    mean, std = torch.tensor(options["mean"]), torch.tensor(options["std"])
    image = image.convert("L" if len(mean) == 1 else "RGB").resize((width, height))
    pixels = torch.from_numpy(np.array(image)).reshape(height, width, -1).permute(2, 0, 1)
    return (pixels / 255 - mean[:, None, None]) / std[:, None, None]
