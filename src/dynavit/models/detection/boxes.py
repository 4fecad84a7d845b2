"""Boxes as pure functions. A box is (x1, y1, x2, y2) in pixels, on continuous coordinates: a pixel is one unit wide."""

import math

import torch
from torch import Tensor

LARGEST_LOG_RATIO = math.log(1000 / 16)  # of a side to its anchor's; keeps exp finite early in training
SHORTEST_SIDE = 1e-3  # pixels; what is shorter is no box


def areas(boxes: Tensor) -> Tensor:
    """(n, 4) -> (n,)."""
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def iou(a: Tensor, b: Tensor) -> Tensor:
    """(n, 4), (m, 4) -> (n, m), intersection over union, in at least float32, without gradients. Boxes without area have 0."""
    dtype = torch.promote_types(a.dtype, torch.float32)
    a, b = a.detach().to(dtype), b.detach().to(dtype)
    # Axis by axis and in place: suppression spends its time here.
    width = torch.minimum(a[:, 2, None], b[:, 2]).sub_(torch.maximum(a[:, 0, None], b[:, 0])).clamp_(min=0)
    height = torch.minimum(a[:, 3, None], b[:, 3]).sub_(torch.maximum(a[:, 1, None], b[:, 1])).clamp_(min=0)
    shared = width.mul_(height)
    union = torch.add(areas(a)[:, None], areas(b)).sub_(shared)
    return shared.div_(union.clamp_(min=torch.finfo(dtype).tiny))


def encode(boxes: Tensor, anchors: Tensor, stds: Tensor) -> Tensor:
    """Offsets (n, 4) that lead from anchors (n, 4) to boxes (n, 4).

    ((centre - centre of anchor) / side of anchor, log(side / side of anchor)) for x and y, divided by `stds` (4,).
    """
    centre, side = _centres(boxes)
    anchor_centre, anchor_side = _centres(anchors)
    return torch.cat([(centre - anchor_centre) / anchor_side, (side / anchor_side).log()], -1) / stds


def decode(deltas: Tensor, anchors: Tensor, stds: Tensor) -> Tensor:
    """Boxes (..., 4) from offsets (..., 4) and anchors that broadcast with them: the inverse of `encode`.

    Sides are at most 62.5 times the anchor's and at least its 62.5th part.
    """
    dtype = torch.promote_types(deltas.dtype, torch.float32)
    deltas = deltas.to(dtype) * stds
    anchor_centre, anchor_side = _centres(anchors)
    centre = deltas[..., :2] * anchor_side + anchor_centre
    half = deltas[..., 2:].clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp() * anchor_side / 2
    return torch.cat([centre - half, centre + half], -1)


def clip(boxes: Tensor, size: tuple[float, float]) -> Tensor:
    """Boxes (..., 4) cut to an image of (height, width): the image itself, not what it is padded to."""
    height, width = size
    x, y = boxes[..., 0::2].clamp(0, width), boxes[..., 1::2].clamp(0, height)
    return torch.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], -1)


def large_enough(boxes: Tensor) -> Tensor:
    """(..., 4) -> (...), False for what has next to no width or height."""
    return ((boxes[..., 2:] - boxes[..., :2]) >= SHORTEST_SIDE).all(-1)


def _centres(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Centres (..., 2) and sides (..., 2)."""
    return (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
