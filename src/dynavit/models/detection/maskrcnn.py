"""Mask R-CNN: proposals first, then a class, a box and a mask for each. He et al. 2017, arXiv 1703.06870.

In training the task decides, with the truth at hand, which proposals are looked at; it hands its choice in as `sample`.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..registry import register_model
from .anchors import RATIOS
from .boxes import clip, decode
from .dense import Dense, best_boxes, detections, flat, lay_anchors, proposals
from .detector import Detector, init_normal, whole_sizes
from .padding import padded_alone, without_padding
from .pyramid import Padding
from .retinanet import small_backbone
from .roi_align import pool_rois
from .rules import Rules

BOX_BINS, MASK_BINS = 7, 14
# Proposals of each image (k, 4) -> boxes to classify, and boxes to draw masks of.
Sample = Callable[[list[Tensor]], tuple[list[Tensor], list[Tensor]]]


class Looked(NamedTuple):
    """Predictions in training: dense ones, and of the boxes that were chosen."""

    dense: Dense
    logits: Tensor  # (k, classes + 1), background last
    deltas: Tensor  # (k, classes, 4)
    masks: Tensor | None  # (m, classes, 28, 28) logits


class ProposalHead(nn.Module):
    """Is there anything at this anchor, and where? Shared over levels."""

    def __init__(self, width: int, per_cell: int) -> None:
        super().__init__()
        self.hidden = nn.Conv2d(width, width, 3, padding=1)
        self.objectness = nn.Conv2d(width, per_cell, 1)
        self.locate = nn.Conv2d(width, per_cell * 4, 1)
        init_normal([self])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.hidden(x).relu()
        return flat(self.objectness(x), 1), flat(self.locate(x), 4)


class BoxHead(nn.Module):
    """(k, width, 7, 7) -> logits (k, classes + 1) and an offset for each class (k, classes, 4)."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width * BOX_BINS**2, hidden), nn.Linear(hidden, hidden)
        self.classify, self.locate = nn.Linear(hidden, classes + 1), nn.Linear(hidden, 4 * classes)
        for linear in (self.first, self.second):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        init_normal([self.classify])
        init_normal([self.locate], 0.001)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.second(self.first(x.flatten(1)).relu()).relu()
        return self.classify(x), self.locate(x).unflatten(1, (-1, 4))


class MaskHead(nn.Module):
    """(m, width, 14, 14) -> logits of a mask for each class (m, classes, 28, 28)."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.finer = nn.ConvTranspose2d(width, width, 2, 2)
        self.last = nn.Conv2d(width, classes, 1)
        for layer in (*self.hidden, self.finer, self.last):
            assert isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) and layer.bias is not None
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        for convolve in self.hidden:
            x = convolve(x).relu()
        return self.last(self.finer(x).relu())


class MaskRCNN(Detector):
    """Proposals from levels 1/4 to 1/64; classes, boxes and masks of those from levels 1/4 to 1/32.

    Args:
        num_classes, backbone, backbone_options, norm, norm_options, padding, width: as in `RetinaNet`.
        hidden: width of the two layers that classify a proposal.
        mask_depth: convolutions of the mask head before it grows finer.
        anchor_scale: side of the anchors, in strides of their level.
        with_masks: predict masks too; False is Faster R-CNN.
    """

    kind: ClassVar[str] = "maskrcnn"
    levels: ClassVar = (0, 1, 2, 3)
    strides: ClassVar = (4, 8, 16, 32, 64)
    extra: ClassVar = "subsampled"
    box_stds: Tensor

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
        hidden: int = 1024,
        mask_depth: int = 4,
        anchor_scale: float = 8.0,
        with_masks: bool = True,
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
        self.proposal_head = ProposalHead(width, len(RATIOS))
        self.box_head = BoxHead(width, hidden, num_classes)
        self.mask_head = MaskHead(width, mask_depth, num_classes) if with_masks else None
        self.register_buffer("box_stds", torch.tensor([0.1, 0.1, 0.2, 0.2]), persistent=False)

    def forward(
        self, images: Tensor, sizes: Tensor | None = None, rules: Rules | None = None, sample: Sample | None = None
    ) -> Looked | list[dict[str, Any]]:
        """Detections as in `detect`; with `sample` the predictions for its choice."""
        sizes, rules = whole_sizes(images) if sizes is None else sizes, rules or Rules()
        maps, dense = self._proposed(images, sizes)
        proposed = self.propose(dense, rules)
        if sample is None:
            return self._detections(maps, proposed, sizes, rules)
        boxes, drawn = sample(proposed)
        logits, deltas = self.box_head(self._pooled(maps, boxes, sizes, BOX_BINS))
        masks = None if self.mask_head is None else self.mask_head(self._pooled(maps, drawn, sizes, MASK_BINS))
        return Looked(dense, logits, deltas, masks)

    def dense(self, images: Tensor, sizes: Tensor | None = None) -> Dense:
        return self._proposed(images, whole_sizes(images) if sizes is None else sizes)[1]

    def _proposed(self, images: Tensor, sizes: Tensor) -> tuple[list[Tensor], Dense]:
        """Maps of the levels, and what the proposal network says about their anchors."""
        maps, real = self.features(images, sizes)
        anchors, usable = lay_anchors(maps, self.strides, self.anchor_scale, (1.0,), sizes)
        found = [self.proposal_head(without_padding(x, mask)) for x, mask in zip(maps, real, strict=True)]
        return maps, Dense([logits for logits, _ in found], [deltas for _, deltas in found], anchors, usable, sizes)

    @torch.no_grad()
    def propose(self, dense: Dense, rules: Rules) -> list[Tensor]:
        """Of each image the best boxes, (k, 4). Twice as many candidates are looked at in training."""
        candidates = rules.candidates * (2 if self.training else 1)
        chosen = []
        for image in range(len(dense.sizes)):
            boxes, scores, levels = best_boxes(dense, image, candidates, self.stds)
            chosen.append(proposals(boxes, scores[:, 0], levels, rules))
        return chosen

    @torch.no_grad()
    def detect(self, images: Tensor, sizes: Tensor | None = None, rules: Rules | None = None) -> list[dict[str, Any]]:
        found = self(images, sizes, rules)
        assert isinstance(found, list)
        return found

    def _detections(self, maps: Sequence[Tensor], proposed: list[Tensor], sizes: Tensor, rules: Rules) -> list[dict[str, Any]]:
        logits, deltas = self.box_head(self._pooled(maps, proposed, sizes, BOX_BINS))
        counts = [len(own) for own in proposed]
        chosen: list[dict[str, Any]] = []
        for own, scores, offsets, size in zip(
            proposed, logits.split(counts), deltas.split(counts), sizes.tolist(), strict=True
        ):
            boxes = clip(decode(offsets, own[:, None], self.box_stds), (size[0], size[1]))
            chosen.append(detections(boxes, scores.float().softmax(-1)[:, :-1], rules))
        if self.mask_head is None:
            return [{**own, "chances": None} for own in chosen]
        masks = self.mask_head(self._pooled(maps, [own["boxes"] for own in chosen], sizes, MASK_BINS)).float().sigmoid()
        for found, chances in zip(chosen, masks.split([len(own["boxes"]) for own in chosen]), strict=True):
            found["chances"] = chances[torch.arange(len(chances), device=chances.device), found["labels"]]
        return chosen

    def _pooled(self, maps: Sequence[Tensor], boxes: Sequence[Tensor], sizes: Tensor, bins: int) -> Tensor:
        levels = len(self.levels)
        extents = [(h, w) for h, w in padded_alone(sizes).tolist()] if self.padding == "all" else None
        return pool_rois(maps[:levels], self.strides[:levels], boxes, bins, extents=extents)


@register_model(task="detection")
def maskrcnn(**kwargs: Any) -> MaskRCNN:
    """Mask R-CNN on any pyramid, PVT-Tiny if none is named (backbone)."""
    return MaskRCNN(**kwargs)


@register_model(task="detection")
def test_maskrcnn(**kwargs: Any) -> MaskRCNN:
    """A Mask R-CNN for tests: the smallest PVT pyramid, 16 channels."""
    return MaskRCNN(**{"num_classes": 3, **small_backbone(kwargs), "width": 16, "hidden": 32, "mask_depth": 1, **kwargs})
