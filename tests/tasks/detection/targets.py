"""Made-up batches of images with boxes."""

import torch

from dynavit.common.batch import Batch


def target(boxes, labels, size=(64, 64), masks=True, image_id=1):
    boxes = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    bitmaps = torch.zeros(len(boxes), *size, dtype=torch.bool)
    for bitmap, (x1, y1, x2, y2) in zip(bitmaps, boxes.round().int().tolist(), strict=True):
        bitmap[y1:y2, x1:x2] = True
    return {
        "boxes": boxes,
        "labels": torch.tensor(labels, dtype=torch.int64),
        "masks": bitmaps if masks else None,
        "crowd_boxes": torch.zeros(0, 4),
        "image_id": image_id,
        "original_size": size,
        "scale": (1.0, 1.0),
        "flipped": False,
        "split": "val",
    }


def batch_of(targets, sizes=None, side=(64, 64), seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = [side] * len(targets) if sizes is None else sizes
    images = torch.zeros(len(targets), 3, *side)
    for image, (height, width) in zip(images, sizes, strict=True):
        image[:, :height, :width] = torch.randn(3, height, width, generator=generator)
    numbers = torch.arange(len(targets))
    inputs = {"images": images, "sizes": torch.tensor(sizes)}
    return Batch(inputs, targets, numbers, len(targets), len(targets))
