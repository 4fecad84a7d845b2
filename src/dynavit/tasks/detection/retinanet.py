"""RetinaNet's loss: every anchor learns, the rare ones that show something as much as all others."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...models.detection.boxes import encode, iou
from ...models.detection.dense import Dense
from ...models.detection.retinanet import RetinaNet
from ..options import DetectionOptions
from .assign import IGNORED, NOTHING, assign_usable
from .losses import focal_sum, l1_sum, wide


def retinanet_losses(
    model: RetinaNet, inputs: Mapping[str, Tensor], targets: Sequence[Mapping[str, Any]], options: DetectionOptions
) -> dict[str, Tensor]:
    """{"loss", "loss_class", "loss_box", "far"}. Divided by the anchors that learn a thing, at least 1 for each image.

    "far" is the share of things that no anchor overlaps by half: too many of them ask for another anchor_scale.
    """
    dense: Dense = model(inputs["images"], inputs["sizes"])
    anchors, usable = torch.cat(dense.anchors), torch.cat(dense.usable, 1)
    logits, deltas = wide(torch.cat(dense.logits, 1)), wide(torch.cat(dense.deltas, 1))
    focal, boxes, divisor = logits.new_zeros(()), logits.new_zeros(()), 0
    far = things = 0
    for own_logits, own_deltas, own_usable, target in zip(logits, deltas, usable, targets, strict=True):
        overlaps = iou(anchors, target["boxes"])
        assigned = assign_usable(overlaps, own_usable, options.positive, options.negative)
        learns = (assigned >= 0).nonzero().flatten()
        thing = assigned[learns]
        classes = torch.full_like(assigned, NOTHING)
        classes[learns] = target["labels"][thing]
        taken = assigned != IGNORED
        focal = focal + focal_sum(own_logits[taken], classes[taken])
        goal = encode(target["boxes"][thing].to(deltas.dtype), anchors[learns].to(deltas.dtype), model.stds)
        boxes = boxes + l1_sum(own_deltas[learns], goal)
        divisor += max(1, len(learns))
        best = overlaps[own_usable].amax(0) if len(target["boxes"]) else overlaps.new_zeros(0)
        far, things = far + int((best < 0.5).sum()), things + len(best)
    loss_class, loss_box = focal / divisor, boxes / divisor
    share = torch.tensor(far / max(1, things))
    return {"loss": loss_class + loss_box, "loss_class": loss_class, "loss_box": loss_box, "far": share}
