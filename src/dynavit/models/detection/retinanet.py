"""RetinaNet: classes and boxes for every anchor at once. Lin et al. 2017, arXiv 1708.02002."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..registry import register_model
from .anchors import RATIOS, THIRDS
from .dense import Dense, best_boxes, detections, flat, lay_anchors
from .detector import Detector, init_normal, whole_sizes
from .padding import without_padding
from .pyramid import Padding
from .rules import Rules

RARE = 0.01  # the share of anchors that show something, which scores start from


class Tower(nn.Module):
    """3x3 convolutions with ReLUs, and a last one; shared over levels. (b, width, rows, cols) -> (b, out, rows, cols)."""

    def __init__(self, width: int, depth: int, out: int) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.last = nn.Conv2d(width, out, 3, padding=1)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        for convolve in self.hidden:
            x = without_padding(convolve(x).relu(), real)
        return self.last(x)


class RetinaNet(Detector):
    """Predictions for every anchor of levels 1/8 to 1/128, nine anchors to a cell.

    Args:
        num_classes: of things.
        backbone, backbone_options: a model of ours with a pyramid or of timm, and its options.
        norm, norm_options: of the backbone.
        padding: what padding of a batch may influence: "none" of it is kept out, it is kept out of the "norm", or out of "all".
        width: channels of the feature pyramid and the towers.
        tower: convolutions before the last one, in each of the two towers.
        anchor_scale: side of the smallest anchor of a level, in strides.
    """

    kind: ClassVar[str] = "retinanet"
    levels: ClassVar = (1, 2, 3)
    strides: ClassVar = (8, 16, 32, 64, 128)
    extra: ClassVar = "convolved"

    def __init__(
        self,
        *,
        num_classes: int = 80,
        backbone: str = "pvt_tiny",
        backbone_options: dict[str, Any] | None = None,
        norm: str | None = None,
        norm_options: dict[str, Any] | None = None,
        padding: Padding | None = None,
        width: int = 256,
        tower: int = 4,
        anchor_scale: float = 4.0,
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            backbone=backbone,
            backbone_options=backbone_options,
            norm=norm,
            norm_options=norm_options,
            padding=padding,
            width=width,
        )
        self.anchor_scale = anchor_scale
        per_cell = len(RATIOS) * len(THIRDS)
        self.classify, self.locate = Tower(width, tower, per_cell * num_classes), Tower(width, tower, per_cell * 4)
        init_normal([self.classify, self.locate])
        assert self.classify.last.bias is not None
        nn.init.constant_(self.classify.last.bias, -math.log(1 / RARE - 1))

    def forward(self, images: Tensor, sizes: Tensor | None = None) -> Dense:
        sizes = whole_sizes(images) if sizes is None else sizes
        maps, real = self.features(images, sizes)
        anchors, usable = lay_anchors(maps, self.strides, self.anchor_scale, THIRDS, sizes)
        logits = [flat(self.classify(x, mask), self.num_classes) for x, mask in zip(maps, real, strict=True)]
        deltas = [flat(self.locate(x, mask), 4) for x, mask in zip(maps, real, strict=True)]
        return Dense(logits, deltas, anchors, usable, sizes)

    def dense(self, images: Tensor, sizes: Tensor | None = None) -> Dense:
        return self(images, sizes)

    @torch.no_grad()
    def detect(self, images: Tensor, sizes: Tensor | None = None, rules: Rules | None = None) -> list[dict[str, Any]]:
        return self.detections(self(images, sizes), rules or Rules())

    def detections(self, dense: Dense, rules: Rules) -> list[dict[str, Any]]:
        found: Sequence[tuple[Tensor, Tensor, Tensor]] = [
            best_boxes(dense, image, rules.candidates, self.stds) for image in range(len(dense.sizes))
        ]
        return [{**detections(boxes, scores, rules), "chances": None} for boxes, scores, _ in found]


@register_model(task="detection")
def retinanet(**kwargs: Any) -> RetinaNet:
    """RetinaNet on any pyramid, PVT-Tiny if none is named (backbone)."""
    return RetinaNet(**kwargs)


@register_model(task="detection")
def test_retinanet(**kwargs: Any) -> RetinaNet:
    """A RetinaNet for tests: the smallest PVT pyramid, 16 channels, one convolution to a tower."""
    return RetinaNet(**{"num_classes": 3, **small_backbone(kwargs), "width": 16, "tower": 1, **kwargs})


def small_backbone(given: dict[str, Any]) -> dict[str, Any]:
    """A PVT of few channels, unless another backbone is named."""
    if "backbone" in given:
        return {}
    sizes = {"embed_dims": (8, 16, 20, 32), "depths": (1, 1, 1, 1), "heads": (1, 2, 5, 8), "mlp_ratios": (2, 2, 2, 2)}
    return {"backbone": "pvt_nano", "backbone_options": {"img_size": 64, **sizes}}
