"""An image file as a model's input, prepared like its training images. A run stores the description, and needs no data set.

{"kind": "files",  image_size, crop_pct, interpolation, mean, std}    as for a set of files: resize, crop from the middle
{"kind": "memory", image_size, mean, std}                             as for a set in memory: the whole image, resized
"""

from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .dataset import DataSet, MemorySplit
from .memory import canvas_size, normalise, pad, resize


def describe_preprocessing(data: DataSet) -> dict[str, Any]:
    """The description for images like those of this data set."""
    split = next(iter(data.splits.values()))
    if isinstance(split, MemorySplit):
        sizes = {"stored_size": list(split.images.shape[-2:]), "image_size": list(data.image_size)}
        return {"kind": "memory", **sizes, "mean": list(data.mean), "std": list(data.std)}
    from .transforms import describe_eval

    return {"kind": "files", **describe_eval(data.image_size, data.mean, data.std, data.crop_pct, data.interpolation)}


def preprocess(path: str | PathLike[str], description: dict[str, Any]) -> Tensor:
    """(channels, height, width) of one image file."""
    from .read_image import read_image

    image = read_image(path)
    options = {name: value for name, value in description.items() if name != "kind"}
    if description["kind"] == "files":
        from .transforms import eval_transform

        return eval_transform(**options)(image)
    (height, width), size = options["stored_size"], tuple(options["image_size"])
    mean, std = (torch.tensor(options[name], dtype=torch.float32) for name in ("mean", "std"))
    image = image.convert("L" if len(mean) == 1 else "RGB").resize((width, height))
    pixels = torch.from_numpy(np.array(image)).reshape(height, width, -1).permute(2, 0, 1)
    pixels = pad(pixels[None], canvas_size((height, width), size))
    return resize(normalise(pixels, mean, std), size)[0]
