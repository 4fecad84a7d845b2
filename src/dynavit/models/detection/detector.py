"""What RetinaNet and Mask R-CNN share: a pyramid with a feature pyramid network behind it."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..timm_conventions import TimmModel
from .dense import Dense
from .fpn import FPN
from .padding import real_cells
from .pyramid import Padding, build_pyramid
from .rules import Rules


class Detector(TimmModel):
    """(b, 3, height, width) padded images and their sizes (b, 2) -> predictions.

    Attributes:
        kind: by which the task knows the losses.
        levels: of the backbone that are used, counted from 0.
        strides: of the levels that predict.
        stds: (4,) that offsets of boxes are divided by.
        pretrained_part: the module that weights of a trained classifier go into.
    """

    kind: ClassVar[str]
    levels: ClassVar[tuple[int, ...]]
    strides: ClassVar[tuple[int, ...]]
    extra: ClassVar[Literal["convolved", "subsampled"]]
    stds: Tensor

    def __init__(
        self,
        *,
        num_classes: int,
        backbone: str,
        backbone_options: dict[str, Any] | None,
        norm: str | None,
        norm_options: dict[str, Any] | None,
        padding: Padding | None,
        width: int,
    ) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"a detector finds at least one class of things; got num_classes={num_classes}")
        self.num_classes, self.backbone = num_classes, backbone
        self.pyramid = build_pyramid(
            backbone, norm=norm, norm_options=norm_options, padding=padding, levels=self.levels, options=backbone_options
        )
        self.fpn = FPN(self.pyramid.channels, width, self.extra)
        self.register_buffer("stds", torch.ones(4), persistent=False)

    def features(self, images: Tensor, sizes: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
        """Maps of the levels, and which of their cells are real where padding may influence nothing."""
        maps = self.pyramid(images, sizes)
        real: list[Tensor | None] = [None] * len(self.strides)
        if self.padding == "all":
            grids = [tuple(-(-side // stride) for side in images.shape[2:]) for stride in self.strides]
            real = [real_cells(sizes, s, (g[0], g[1])) for s, g in zip(self.strides, grids, strict=True)]
        return self.fpn(maps, real), real

    @property
    def padding(self) -> Padding:
        """What padding of a batch may influence, see `pyramid`."""
        return self.pyramid.padding

    def detect(self, images: Tensor, sizes: Tensor | None = None, rules: Rules | None = None) -> list[dict[str, Any]]:
        """Of each image {"boxes" (k, 4) in its pixels, "scores" (k,), "labels" (k,), "chances"}, best first.

        "chances" (k, 28, 28) are those of each cell of a box to belong to the thing; None without masks.
        """
        raise NotImplementedError

    def dense(self, images: Tensor, sizes: Tensor | None = None) -> Dense:
        """Predictions for every anchor; of Mask R-CNN those of its proposals."""
        raise NotImplementedError

    @property
    def pretrained_part(self) -> nn.Module:
        return self.pyramid.body

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.pyramid.body.set_grad_checkpointing(enable)  # type: ignore[operator]


def whole_sizes(images: Tensor) -> Tensor:
    """Sizes (b, 2) of images without padding."""
    return torch.tensor([images.shape[2:]], device=images.device).expand(len(images), 2)


def init_normal(modules: Sequence[nn.Module], std: float = 0.01) -> None:
    """Convolutions and linears start at N(0, std), biases at 0."""
    for top in modules:
        for module in top.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.normal_(module.weight, std=std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
