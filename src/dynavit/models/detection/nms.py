"""Greedy non-maximum suppression without a loop over boxes.

In order of score, box j is kept unless a kept box before it overlaps it: k_j = not any_i (k_i and X_ij). This has one fixed
point, since the first r entries are final after r rounds; iterating from "all kept" reaches it in a handful of rounds.
"""

import torch
from torch import Tensor

from .boxes import iou

BLOCK = 2048  # boxes whose overlaps are held at once


def nms(boxes: Tensor, scores: Tensor, groups: Tensor, threshold: float, *, block: int = BLOCK) -> Tensor:
    """Numbers of the boxes that are kept, (k,), best score first; equal scores stay in their order.

    A box goes if one with a better score, of the same group and kept itself, overlaps it by more than `threshold`.

    Args:
        boxes: (n, 4).
        scores: (n,).
        groups: (n,) classes or levels. They are compared, not added to coordinates, which would round those.
        block: results do not depend on it.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes, groups = boxes[order], groups[order]
    kept = torch.zeros_like(order, dtype=torch.bool)
    if len(order) <= block:
        kept[:] = _kept(boxes, groups, threshold, block)
    else:
        for group in groups.unique():
            own = groups == group
            kept[own] = _kept(boxes[own], groups[own], threshold, block)
    return order[kept]


def _kept(boxes: Tensor, groups: Tensor, threshold: float, block: int) -> Tensor:
    """(n,) of boxes in order of score, block after block: first what earlier blocks suppress, then the fixed point within."""
    kept = torch.zeros(len(boxes), dtype=torch.bool, device=boxes.device)
    for start in range(0, len(boxes), block):
        own = slice(start, start + block)
        free = ~_overlap(boxes[kept], groups[kept], boxes[own], groups[own], threshold).any(0)
        suppresses = _overlap(boxes[own], groups[own], boxes[own], groups[own], threshold).triu(1)
        kept[own] = _fixed_point(suppresses, free)
    return kept


def _overlap(a: Tensor, groups_a: Tensor, b: Tensor, groups_b: Tensor, threshold: float) -> Tensor:
    return (iou(a, b) > threshold) & (groups_a[:, None] == groups_b[None])


def _fixed_point(suppresses: Tensor, free: Tensor) -> Tensor:
    kept = free
    while True:
        after = free & ~suppresses[kept].any(0)
        if torch.equal(after, kept):
            return kept
        kept = after
