"""Vision transformer. Dosovitskiy et al., ICLR 2021, arXiv 2010.11929, in the sizes of the DTN paper (arXiv 2112.02624).

Axes:  b samples, t tokens, c channels. Patches are row-major on a (rows, cols) grid, the class token stands in front.

The first `norm_blocks` blocks carry the chosen norm, the rest and the last norm are LayerNorm. A "late" class token enters
after those blocks, so that norms which mix tokens see patches only:

    image -> patches + positions -> blocks[:norm_blocks] -> [class token] -> blocks[norm_blocks:] -> norm -> head

Parameters are named as in timm.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..common.registry import nearest_match_error
from .conv_tokens import ConvTokens, Split
from .layers import check_norm, divide_into_patches, pair, patch_grid, resize_positions
from .registry import register_model
from .trunk import Trunk


class PatchEmbed(nn.Module):
    """Patches through one convolution. (b, in_chans, height, width) -> (b, rows * cols, c), (rows, cols)."""

    def __init__(self, img_size: tuple[int, int], patch_size: tuple[int, int], in_chans: int, dim: int) -> None:
        super().__init__()
        self.img_size, self.patch_size, self.in_chans = img_size, patch_size, in_chans
        self.grid_size = divide_into_patches("VisionTransformer", img_size, patch_size)
        self.proj = nn.Conv2d(in_chans, dim, patch_size, patch_size)

    def forward(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        grid = patch_grid("VisionTransformer", image, self.patch_size, self.in_chans)
        return self.proj(image).flatten(2).transpose(1, 2), grid


class VisionTransformer(Trunk):
    """A plain vision transformer with a choice of norms. (b, in_chans, height, width) -> (b, num_classes).

    Args:
        img_size: the size positions are learned for; images of other sizes get them interpolated.
        patch_size: of the patches that become tokens; without effect if there is a `stem`.
        stem: (kernel, stride, padding) of each convolution of a stem that makes overlapping tokens instead, with a GELU between
            two convolutions. ((3, 1, 1), (3, 2, 1), (3, 2, 1)) turns 32 x 32 pixels into 8 x 8 tokens.
        stem_width: channels between these convolutions.
        stem_norm: a norm between them, such as "bn"; `norm` does not touch it. None: without.
        norm, norm_options: a name of `list_norms` and its options.
        norm_blocks: how many blocks, from the first, carry `norm` (the paper's l^dtn); clipped to the depth.
        norm_sites: which norms of such a block: "both", or only the one before "attn" or "mlp".
        class_token: "late" enters after block `norm_blocks`, without a position of its own, and at the latest before the last
            block, because it has to see the image. "start": there from the start. None, "none": the mean of patches is
            classified.
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last block.
        released_init: overwrite the start of DTN's `position` as the released models do, by mistake.
        init_std: deviation of the linears' weights at the start. 0.02 is meant for hundreds of channels. With a few dozen a
            block then adds little, random features are much the same for all images, and training without labels, which
            begins with nothing else, collapses; 0.08 helps there.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dim: int = 384,
        depth: int = 12,
        heads: int = 6,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = False,
        norm: str = "ln",
        norm_options: dict[str, Any] | None = None,
        norm_blocks: int = 10,
        norm_sites: Literal["both", "attn", "mlp"] = "both",
        class_token: Literal["late", "start", "none"] | None = "late",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        released_init: bool = False,
        stem: Sequence[Split] | None = None,
        stem_width: int = 64,
        stem_norm: str | None = None,
        init_std: float = 0.02,
    ) -> None:
        super().__init__()
        if not 0 < init_std < 10:
            raise ValueError(f"VisionTransformer: init_std is a deviation of weights, above 0, such as 0.02; got {init_std}")
        self.init_std = init_std
        class_token = class_token or "none"
        check_norm(norm, norm_sites)
        if class_token not in ("late", "start", "none"):
            raise nearest_match_error("class token", class_token, ("late", "start", "none"))
        if depth < 1 or norm_blocks < 0:
            raise ValueError(f"VisionTransformer: depth={depth} is at least 1 and norm_blocks={norm_blocks} at least 0")
        self.place_token(class_token, min(norm_blocks, depth), depth)

        self.patch_embed: PatchEmbed | ConvTokens
        if stem is None:
            self.patch_embed = PatchEmbed(pair(img_size), pair(patch_size), in_chans, embed_dim)
            self.grid_size, reduction = self.patch_embed.grid_size, max(pair(patch_size))
        else:
            self.patch_embed = ConvTokens(embed_dim, stem, in_chans, stem_width, norm=stem_norm)
            self.grid_size = self.patch_embed.grids(pair(img_size))[-1]
            reduction = math.prod(stride for _, stride, _ in self.patch_embed.splits)
        positions = math.prod(self.grid_size) + (class_token == "start")
        self.pos_embed = nn.Parameter(torch.empty(1, positions, embed_dim))
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim)) if self.num_prefix_tokens else None

        self.add_blocks(
            embed_dim,
            depth,
            heads,
            mlp_ratio,
            norm=norm,
            norm_options=norm_options,
            norm_sites=norm_sites,
            drop_path_rate=drop_path_rate,
            qkv_bias=qkv_bias,
        )
        self.finish(
            pair(img_size),
            in_chans,
            num_classes,
            embed_dim,
            heads,
            drop_rate=drop_rate,
            reduction=reduction,
            first_conv="patch_embed." + ("stem.0" if stem is not None and len(stem) > 1 else "proj"),
            released_init=released_init,
        )

    def embed(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Patches with their positions, and a class token if it is there from the start."""
        x, grid = self.patch_embed(image)
        prefix = int(self.class_token == "start")
        positions = resize_positions(self.pos_embed, self.grid_size, grid, prefix)
        return (self.with_token(x) if prefix else x) + positions, grid


@register_model
def vit_tiny(**kwargs: Any) -> VisionTransformer:
    """ViT-T: 192 channels, 3 heads."""
    return VisionTransformer(**{"embed_dim": 192, "heads": 3, **kwargs})


@register_model
def vit_tiny_star(**kwargs: Any) -> VisionTransformer:
    """ViT-T*: 192 channels, 4 heads (a square, one neighbour for each in Eqn 7)."""
    return VisionTransformer(**{"embed_dim": 192, "heads": 4, **kwargs})


@register_model
def vit_small(**kwargs: Any) -> VisionTransformer:
    """ViT-S: 384 channels, 6 heads."""
    return VisionTransformer(**{"embed_dim": 384, "heads": 6, **kwargs})


@register_model
def vit_small_star(**kwargs: Any) -> VisionTransformer:
    """ViT-S*: 432 channels, 9 heads."""
    return VisionTransformer(**{"embed_dim": 432, "heads": 9, **kwargs})


@register_model
def vit_base(**kwargs: Any) -> VisionTransformer:
    """ViT-B: 768 channels, 12 heads."""
    return VisionTransformer(**{"embed_dim": 768, "heads": 12, **kwargs})


@register_model
def vit_base_star(**kwargs: Any) -> VisionTransformer:
    """ViT-B*: 768 channels, 16 heads."""
    return VisionTransformer(**{"embed_dim": 768, "heads": 16, **kwargs})


@register_model
def vit_mini(**kwargs: Any) -> VisionTransformer:
    """A vision transformer for small photographs: 32 x 32 pixels in 8 x 8 patches, 4 blocks of 64 channels, 4 heads."""
    small = {"img_size": 32, "patch_size": 4, "num_classes": 10, "embed_dim": 64, "depth": 4, "heads": 4}
    return VisionTransformer(**{**small, "norm_blocks": 4, "class_token": "none", **kwargs})


@register_model
def vit_micro(**kwargs: Any) -> VisionTransformer:
    """A vision transformer for tiny images: 8 x 8 pixels in 4 x 4 patches, 4 blocks of 64 channels, 4 heads."""
    small = {"img_size": 8, "patch_size": 2, "num_classes": 10, "embed_dim": 64, "depth": 4, "heads": 4}
    return VisionTransformer(**{**small, "norm_blocks": 4, "class_token": "none", **kwargs})


@register_model
def vit_photo(**kwargs: Any) -> VisionTransformer:
    """A vision transformer for photographs: 224 x 224 pixels in 14 x 14 patches, 6 blocks of 128 channels, 4 heads."""
    small = {"embed_dim": 128, "depth": 6, "heads": 4, "norm_blocks": 6, "class_token": "none"}
    return VisionTransformer(**{**small, **kwargs})


@register_model
def test_vit(**kwargs: Any) -> VisionTransformer:
    """A vision transformer for tests: 32 x 32 images, 4 x 4 patches of 8 pixels, 3 blocks."""
    small = {"img_size": 32, "patch_size": 8, "num_classes": 10, "embed_dim": 48, "depth": 3, "heads": 4, "norm_blocks": 2}
    return VisionTransformer(**{**small, **kwargs})
