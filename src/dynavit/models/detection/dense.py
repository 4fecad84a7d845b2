"""Predictions for every anchor of a pyramid, and how detections and proposals are chosen among them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .anchors import RATIOS, base_anchors, grid_anchors
from .boxes import clip, decode, large_enough
from .nms import nms
from .padding import padded_alone, real_cells
from .rules import Rules


class Dense(NamedTuple):
    """Predictions of a batch, level by level."""

    logits: list[Tensor]  # (b, n, classes)
    deltas: list[Tensor]  # (b, n, 4)
    anchors: list[Tensor]  # (n, 4)
    usable: list[Tensor]  # (b, n) whether the anchor's cell exists if the image is padded alone
    sizes: Tensor  # (b, 2) of the images without padding


def lay_anchors(
    maps: Sequence[Tensor], strides: Sequence[int], scale: float, scales: Sequence[float], sizes: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Anchors of each level, (n, 4), and whether they may be used for each image, (b, n).

    Their side is `scale` strides. Cells that only a larger neighbour in the batch makes are not used, so that an image has the
    same anchors in every batch.
    """
    anchors, usable = [], []
    per_cell = len(scales) * len(RATIOS)
    for x, stride in zip(maps, strides, strict=True):
        grid = (x.shape[2], x.shape[3])
        anchors.append(grid_anchors(base_anchors(scale * stride, scales).to(x.device), grid, stride))
        cells = real_cells(padded_alone(sizes), stride, grid)
        usable.append(cells.flatten(1).repeat_interleave(per_cell, 1))
    return anchors, usable


def flat(x: Tensor, channels: int) -> Tensor:
    """(b, anchors of a cell * channels, rows, cols) -> (b, rows * cols * anchors of a cell, channels)."""
    return x.permute(0, 2, 3, 1).reshape(len(x), -1, channels)


def best_boxes(dense: Dense, image: int, candidates: int, stds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of one image the anchors with the best scores in each level: boxes (m, 4), scores (m, classes), levels (m,)."""
    boxes, scores, levels = [], [], []
    size = (float(dense.sizes[image, 0]), float(dense.sizes[image, 1]))
    for level, (logits, deltas, anchors, usable) in enumerate(zip(*dense[:4], strict=True)):
        own = usable[image].nonzero().flatten()
        chances = logits[image][own].float().sigmoid()
        if len(own) > candidates:
            best = chances.amax(1).topk(candidates).indices
            own, chances = own[best], chances[best]
        boxes.append(clip(decode(deltas[image][own], anchors[own], stds), size))
        scores.append(chances)
        levels.append(torch.full_like(own, level))
    return torch.cat(boxes), torch.cat(scores), torch.cat(levels)


def detections(boxes: Tensor, scores: Tensor, rules: Rules) -> dict[str, Tensor]:
    """Boxes (m, 4), or of each class (m, classes, 4), with scores (m, classes) -> {"boxes" (k, 4), "scores", "labels" (k,)}."""
    box, label = (scores > rules.score).nonzero(as_tuple=True)
    chosen, chances = (boxes[box] if boxes.dim() == 2 else boxes[box, label]), scores[box, label]
    whole = large_enough(chosen)
    chosen, chances, label = chosen[whole], chances[whole], label[whole]
    kept = nms(chosen, chances, label, rules.overlap)[: rules.most]
    return {"boxes": chosen[kept], "scores": chances[kept], "labels": label[kept]}


def proposals(boxes: Tensor, scores: Tensor, levels: Tensor, rules: Rules) -> Tensor:
    """Boxes (m, 4) with scores (m,) -> the best (k, 4), suppressed within their levels."""
    whole = large_enough(boxes)
    boxes, scores, levels = boxes[whole], scores[whole], levels[whole]
    return boxes[nms(boxes, scores, levels, rules.proposal_overlap)[: rules.proposals]]
