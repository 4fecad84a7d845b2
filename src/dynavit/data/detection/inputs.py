"""One image to ask a detector about: a file, or a sample of a data set. Both know the size that answers are to be given in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...common.batch import Batch
from ..read_image import read_image
from .dataset import preparation_of
from .transform import joined


def file_input(path: Path, facts: Mapping[str, Any]) -> dict[str, Tensor]:
    """{"images": (1, 3, H, W), "sizes": (1, 2), "original_sizes": (1, 2)} of an image file, upright."""
    image = read_image(path)
    inputs, _ = joined([(preparation_of(facts).pixels(image), {})])
    return {**inputs, "original_sizes": torch.tensor([[image.height, image.width]])}


def sample_input(batch: Batch) -> dict[str, Tensor]:
    """The same of a batch of `DetectionData`, for all of its images."""
    original = torch.tensor([target["original_size"] for target in batch.targets], device=batch.index.device)
    return {**batch.inputs, "original_sizes": original}


def origin_of(inputs: Mapping[str, Tensor], place: int = 0) -> dict[str, Any]:
    """What `results.in_original_pixels` needs to know about an image of these inputs."""
    (height, width), (rows, columns) = (inputs[name][place].tolist() for name in ("sizes", "original_sizes"))
    return {"original_size": (rows, columns), "scale": (height / rows, width / columns), "flipped": False}
