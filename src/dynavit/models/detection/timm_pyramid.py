"""A model of timm with four feature maps as a pyramid: PVTv2, Swin and their like. They take no mask, so padding is "none"."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..registry import create_model
from .pyramid import STRIDES, ChannelNorm, Pyramid

ENDS_IN_NORM = ("PyramidVisionTransformerV2",)  # whose stages do


class TimmPyramid(Pyramid):
    """What `forward_intermediates` gives, with one LayerNorm for each map unless stages end in a norm already."""

    def __init__(self, body: nn.Module, name: str, levels: Sequence[int]) -> None:
        info: Any = getattr(body, "feature_info", ())
        if not hasattr(body, "forward_intermediates") or [entry["reduction"] for entry in info] != list(STRIDES):
            raise ValueError(f"{name} has no maps of 1/4, 1/8, 1/16 and 1/32 of an image, which a pyramid is made of")
        body.prune_intermediate_layers([*range(max(levels) + 1)], prune_norm=True, prune_head=True)  # type: ignore[operator]
        super().__init__(body, [entry["num_chs"] for entry in info], levels, "none")
        plain = type(body).__name__ in ENDS_IN_NORM
        self.norms = nn.ModuleList(nn.Identity() if plain else ChannelNorm(channels) for channels in self.channels)

    def maps(self, images: Tensor, sizes: Tensor | None) -> list[Tensor]:
        found = self.body.forward_intermediates(  # type: ignore[operator]
            images, indices=list(self.levels), output_fmt="NCHW", intermediates_only=True
        )
        return [norm(x) for norm, x in zip(self.norms, found, strict=True)]


def built_for_any_size(name: str, options: dict[str, Any]) -> nn.Module:
    """The model, told not to insist on its image size where it would."""
    try:
        return create_model(name, **{"strict_img_size": False, "num_classes": 0, **options})
    except TypeError:  # it takes any
        return create_model(name, **{"num_classes": 0, **options})
