"""Detections of a resized image, brought back to the image as it was."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...models.detection.boxes import clip
from ...models.detection.paste import paste_mask


def in_original(found: Mapping[str, Any], scale: tuple[float, float], size: tuple[int, int]) -> dict[str, Any]:
    """Detections in resized pixels -> {"boxes" (k, 4), "scores", "labels" (k,), "masks"} in those of the image, on the CPU.

    Masks are run-length codes as COCO has them, a list of k, or None.

    Args:
        scale: (resized / original) height and width; rounding makes them differ a little.
        size: (height, width) of the original.
    """
    sy, sx = scale
    shrink = torch.tensor([sx, sy, sx, sy], dtype=torch.float64)
    boxes = clip(found["boxes"].cpu().double() / shrink, size).float()
    masks = None
    if found["chances"] is not None:
        masks = [_encoded(chances, box, size) for chances, box in zip(found["chances"].cpu(), boxes, strict=True)]
    return {"boxes": boxes, "scores": found["scores"].cpu().float(), "labels": found["labels"].cpu(), "masks": masks}


def _encoded(chances: Tensor, box: Tensor, size: tuple[int, int]) -> dict[str, Any]:
    from ...data.detection.rle import encode

    return encode(paste_mask(chances, box, size).numpy())
