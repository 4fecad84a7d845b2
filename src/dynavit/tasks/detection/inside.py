"""What a detector's anchors match, and how much padding moves its scores: the numbers behind figures of `dynavit analyze`."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...common.batch import Batch
from ...models.detection.boxes import areas, iou
from ...models.detection.detector import Detector
from ...models.detection.padding import padded_alone
from ...models.detection.pyramid import PADDINGS
from ...models.detection.timm_pyramid import TimmPyramid
from .assign import assign_usable

SIZES = {"small": (0, 32), "medium": (32, 96), "large": (96, float("inf"))}  # sides of a square of that area, as COCO has them
BINS = 10  # of overlaps from 0 to 1
# Neighbours in eight batches are larger than the image by so many steps of 64 pixels in height and width.
LARGER = ((1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (2, 2), (4, 0), (0, 4))
STEP = 64


@torch.no_grad()
def anchor_numbers(detector: Detector, batches: Sequence[Batch], thresholds: tuple[float, float, float]) -> dict[str, Any]:
    """How well anchors fit the things of some images, and how many learn something in each level.

    {"histogram": things by the overlap with their best anchor, "sizes": [{"name", "things", "far", "best", "anchors"}, ...],
    "levels": [{"stride", "anchors", "learn"}, ...] for an image, "thresholds"}. "far" is the share of things whose best anchor
    overlaps them by less than half, "best" the mean of the best overlaps, "anchors" how many learn a thing.
    """
    best, sides, learners = [], [], []
    learn, usable_of = [0] * len(detector.strides), [0] * len(detector.strides)
    images = 0
    for batch in batches:
        dense = detector.dense(batch.inputs["images"], batch.inputs["sizes"])
        anchors, counts = torch.cat(dense.anchors), [len(level) for level in dense.anchors]
        for usable, target in list(zip(torch.cat(dense.usable, 1), batch.targets, strict=True))[: batch.count]:
            images += 1
            overlaps = iou(anchors, target["boxes"])
            assigned = assign_usable(overlaps, usable, *thresholds)
            for at, (own, may) in enumerate(zip(assigned.split(counts), usable.split(counts), strict=True)):
                learn[at] += int((own >= 0).sum())
                usable_of[at] += int(may.sum())
            if len(target["boxes"]):
                best += overlaps[usable].amax(0).tolist()
                sides += areas(target["boxes"]).sqrt().tolist()
                learners += torch.bincount(assigned[assigned >= 0], minlength=len(target["boxes"])).tolist()
    rows = [_size_row("all", best, learners)]
    for name, (low, high) in SIZES.items():
        own = [at for at, side in enumerate(sides) if low <= side < high]
        rows.append(_size_row(name, [best[at] for at in own], [learners[at] for at in own]))
    return {
        "histogram": torch.histc(torch.tensor(best, dtype=torch.float64), BINS, 0, 1).int().tolist(),
        "sizes": rows,
        "levels": [
            {"stride": stride, "anchors": total / images, "learn": own / images}
            for stride, total, own in zip(detector.strides, usable_of, learn, strict=True)
        ],
        "thresholds": list(thresholds),
    }


def _size_row(name: str, best: Sequence[float], learners: Sequence[int]) -> dict[str, Any]:
    count = len(best)
    far = sum(value < 0.5 for value in best)
    return {
        "name": name,
        "things": count,
        "far": far / count if count else None,
        "best": sum(best) / count if count else None,
        "anchors": sum(learners) / count if count else None,
    }


@torch.no_grad()
def padding_numbers(detector: Detector, batches: Sequence[Batch]) -> dict[str, Any] | None:
    """How far the scores of one image move when it shares a batch with a larger one, for each kind of masks.

    {"batches": ["+64 x +0", ...], "own": the detector's padding, "modes": {"none": {"largest": [...], "mean": [...]}, ...}}:
    of each batch the largest and the mean change of a score against the image alone. None for backbones that take no mask.
    """
    if isinstance(detector.pyramid, TimmPyramid):
        return None
    own = detector.padding
    height, width = batches[0].inputs["sizes"][0].tolist()
    image = batches[0].inputs["images"][:1, :, :height, :width]
    others = [batch.inputs for batch in (*batches[1:], batches[0])]
    modes: dict[str, dict[str, list[float]]] = {}
    try:
        for mode in PADDINGS:
            detector.pyramid.set_padding(mode)
            alone = _scores(detector, [image])
            changes = []
            for number, (down, across) in enumerate(LARGER):
                inputs = others[number % len(others)]
                rows, cols = inputs["sizes"][0].tolist()
                size = (height + STEP * down, width + STEP * across)
                other = F.interpolate(inputs["images"][:1, :, :rows, :cols], size, mode="bilinear", align_corners=False)
                changes.append((_scores(detector, [image, other]) - alone).abs())
            modes[mode] = {"largest": [float(c.max()) for c in changes], "mean": [float(c.mean()) for c in changes]}
    finally:
        detector.pyramid.set_padding(own)
    return {"batches": [f"+{STEP * down} × +{STEP * across}" for down, across in LARGER], "own": own, "modes": modes}


def _scores(detector: Detector, images: Sequence[Tensor]) -> Tensor:
    """Scores of the first image's anchors in a batch of these, all that it has if it is alone."""
    sizes = torch.tensor([image.shape[2:] for image in images], device=images[0].device)
    height, width = padded_alone(sizes).amax(0).tolist()
    padded = [F.pad(image, (0, width - image.shape[3], 0, height - image.shape[2])) for image in images]
    dense = detector.dense(torch.cat(padded), sizes)
    found = [level[0][usable[0]] for level, usable in zip(dense.logits, dense.usable, strict=True)]
    return torch.cat(found).sigmoid()
