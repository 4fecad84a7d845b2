"""Mask R-CNN's losses: of the proposal network, and of the proposals that were looked at."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.detection.boxes import encode, iou
from ...models.detection.dense import Dense
from ...models.detection.maskrcnn import Looked, MaskRCNN
from ...models.detection.roi_align import roi_align_separable
from ...models.detection.rules import Rules
from ..options import DetectionOptions
from .assign import assign, assign_usable
from .losses import l1_sum, wide
from .sample import sample

ANCHORS = 256  # of an image that the proposal network learns from, half of them things at most
PROPOSAL_THRESHOLDS = (0.7, 0.3, 0.3)  # positive, negative, and the least that a thing's best anchor has
MASK_SIDE = 28


def maskrcnn_losses(
    model: MaskRCNN,
    inputs: Mapping[str, Tensor],
    targets: Sequence[Mapping[str, Any]],
    options: DetectionOptions,
    rules: Rules,
) -> dict[str, Tensor]:
    """{"loss": their sum, "loss_proposal_class", "loss_proposal_box", "loss_class", "loss_box", "loss_mask"}"""
    choice = Choice(targets, options.rois)
    looked = model(inputs["images"], inputs["sizes"], rules, choice)
    assert isinstance(looked, Looked)
    losses = proposal_losses(looked.dense, targets, model.stds) | box_losses(looked, choice, model.box_stds)
    if looked.masks is not None:
        losses["loss_mask"] = mask_loss(looked.masks, choice)
    return {"loss": torch.stack(list(losses.values())).sum(), **losses}


class Choice:
    """Proposals and true boxes of each image, assigned to things, and a sample of them: `model(..., sample=choice)`.

    Attributes:
        rois: boxes of each image, those that learn a thing first.
        things: of each image the numbers of the things that these learn.
    """

    def __init__(self, targets: Sequence[Mapping[str, Any]], count: int) -> None:
        self.targets, self.count = targets, count
        self.rois: list[Tensor] = []
        self.things: list[Tensor] = []

    @torch.no_grad()
    def __call__(self, proposed: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        for own, target in zip(proposed, self.targets, strict=True):
            boxes = torch.cat([target["boxes"].to(own.dtype), own])
            assigned = assign(iou(boxes, target["boxes"].to(own.dtype)), 0.5, 0.5, 0.5)
            things, nothing = sample(assigned, self.count, 0.25)
            self.rois.append(boxes[torch.cat([things, nothing])])
            self.things.append(assigned[things])
        return self.rois, [boxes[: len(things)] for boxes, things in zip(self.rois, self.things, strict=True)]


def proposal_losses(dense: Dense, targets: Sequence[Mapping[str, Any]], stds: Tensor) -> dict[str, Tensor]:
    """Of 256 anchors of each image, divided by all that were drawn."""
    anchors, usable = torch.cat(dense.anchors), torch.cat(dense.usable, 1)
    logits, deltas = wide(torch.cat(dense.logits, 1)), wide(torch.cat(dense.deltas, 1))
    found, boxes, drawn = logits.new_zeros(()), logits.new_zeros(()), 0
    for own_logits, own_deltas, own_usable, target in zip(logits[..., 0], deltas, usable, targets, strict=True):
        assigned = assign_usable(iou(anchors, target["boxes"]), own_usable, *PROPOSAL_THRESHOLDS)
        things, nothing = sample(assigned, ANCHORS, 0.5)
        chosen = torch.cat([things, nothing])
        truth = (torch.arange(len(chosen), device=chosen.device) < len(things)).to(logits.dtype)
        found = found + F.binary_cross_entropy_with_logits(own_logits[chosen], truth, reduction="sum")
        goal = encode(target["boxes"][assigned[things]].to(deltas.dtype), anchors[things].to(deltas.dtype), stds)
        boxes = boxes + l1_sum(own_deltas[things], goal)
        drawn += len(chosen)
    return {"loss_proposal_class": found / max(1, drawn), "loss_proposal_box": boxes / max(1, drawn)}


def box_losses(looked: Looked, choice: Choice, stds: Tensor) -> dict[str, Tensor]:
    """Class, background last, and the true class's box of each proposal, divided by all proposals that were looked at."""
    nothing = looked.logits.shape[1] - 1
    classes, rows, goals = [], [], []
    start = 0
    for boxes, things, target in zip(choice.rois, choice.things, choice.targets, strict=True):
        own = torch.full((len(boxes),), nothing, device=boxes.device)
        own[: len(things)] = target["labels"][things]
        classes.append(own)
        rows.append(torch.arange(start, start + len(things), device=boxes.device))
        goals.append(encode(target["boxes"][things].to(boxes.dtype), boxes[: len(things)], stds))
        start += len(boxes)
    truth, row, goal = torch.cat(classes), torch.cat(rows), torch.cat(goals)
    divisor = max(1, len(truth))
    logits, deltas = wide(looked.logits), wide(looked.deltas)
    loss_class = F.cross_entropy(logits, truth, reduction="sum") / divisor
    # Offsets of all rows take part with weight 0, so that there is a gradient where nothing was found.
    loss_box = (l1_sum(deltas[row, truth[row]], goal) + 0 * deltas.sum()) / divisor
    return {"loss_class": loss_class, "loss_box": loss_box}


def mask_loss(masks: Tensor, choice: Choice) -> Tensor:
    """Mean cross entropy of the true class's mask, (m, classes, 28, 28) logits."""
    labels = torch.cat([target["labels"][things] for things, target in zip(choice.things, choice.targets, strict=True)])
    if not len(labels):
        return 0 * wide(masks).sum()
    truth = torch.cat(
        [
            mask_targets(target["masks"], boxes[: len(things)], things)
            for boxes, things, target in zip(choice.rois, choice.things, choice.targets, strict=True)
        ]
    )
    own = wide(masks[torch.arange(len(labels), device=labels.device), labels])
    return F.binary_cross_entropy_with_logits(own, truth.to(own.dtype))


def mask_targets(masks: Tensor | None, boxes: Tensor, things: Tensor, side: int = MASK_SIDE) -> Tensor:
    """True masks (n, height, width) inside proposals (m, 4) of `things` (m,): (m, side, side) of 0 and 1.

    RoIAlign of the bitmap at the proposal, not at the true box, cut at 1/2.
    """
    found = boxes.new_zeros(len(boxes), side, side)
    for thing in things.unique().tolist():
        if masks is None:
            raise ValueError(
                "Mask R-CNN learns masks, and the samples have none; --model_options.with_masks false does without"
            )
        own = things == thing
        bitmap = masks[thing][None].to(boxes.dtype)
        found[own] = (roi_align_separable(bitmap, boxes[own], side, 1.0)[:, 0] >= 0.5).to(boxes.dtype)
    return found
