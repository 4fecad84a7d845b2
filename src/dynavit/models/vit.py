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
from timm.models._features import feature_take_indices
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..common.registry import nearest_match_error
from ..norms import Norm
from ..norms.factory import norm_class_of
from .conv_tokens import ConvTokens, Split
from .layers import (
    Attention,
    Block,
    Mlp,
    divide_into_patches,
    drop_path_rates,
    image_config,
    init_linears,
    make_head,
    make_norm,
    names_without_decay,
    overwrite_position_as_released,
    pair,
    patch_grid,
    resize_positions,
)
from .registry import register_model

NORM_SITES = {"both": ("attn", "mlp"), "attn": ("attn",), "mlp": ("mlp",)}


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


class VisionTransformer(nn.Module):
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
            block, for it has to see the image. "start": there from the start. None, "none": the mean of patches is classified.
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last block.
        released_init: overwrite DTN's positional init as the released models do, by mistake.
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
    ) -> None:
        super().__init__()
        class_token = class_token or "none"
        if norm_sites not in NORM_SITES:
            raise nearest_match_error("norm site", norm_sites, NORM_SITES)
        if class_token not in ("late", "start", "none"):
            raise nearest_match_error("class token", class_token, ("late", "start", "none"))
        if depth < 1 or norm_blocks < 0:
            raise ValueError(f"VisionTransformer: depth={depth} is at least 1 and norm_blocks={norm_blocks} at least 0")
        self.num_classes, self.in_chans = num_classes, in_chans
        self.embed_dim = self.num_features = self.head_hidden_size = embed_dim
        self.norm_blocks = min(norm_blocks, depth)
        self.class_token = class_token
        # The block before which the class token enters; -1: never.
        self.token_enters = {"none": -1, "start": 0, "late": min(self.norm_blocks, depth - 1)}[class_token]
        self.num_prefix_tokens = 0 if class_token == "none" else 1
        self.global_pool = "token" if self.num_prefix_tokens else "avg"
        self.grad_checkpointing = False

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

        def norm_at(block: int, site: str) -> Norm:
            if block >= self.norm_blocks or site not in NORM_SITES[norm_sites]:
                return make_norm("ln", embed_dim, heads)
            return make_norm(norm, embed_dim, heads, norm_options, num_prefix_tokens=self.prefix_tokens(block))

        norm_class_of(norm)  # an unknown norm is an error even where no block carries it
        self.blocks = nn.Sequential(
            *(
                Block(
                    norm_at(i, "attn"),
                    Attention(embed_dim, heads, qkv_bias=qkv_bias),
                    norm_at(i, "mlp"),
                    Mlp(embed_dim, int(embed_dim * mlp_ratio)),
                    drop_path=rate,
                )
                for i, rate in enumerate(drop_path_rates(drop_path_rate, depth))
            )
        )
        self.norm: nn.Module = make_norm("ln", embed_dim, heads)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()

        self.feature_info = [{"module": f"blocks.{i}", "num_chs": embed_dim, "reduction": reduction} for i in range(depth)]
        first = "patch_embed." + ("stem.0" if stem is not None and len(stem) > 1 else "proj")
        self.default_cfg = image_config(pair(img_size), in_chans, num_classes, first_conv=first)
        self.pretrained_cfg = self.default_cfg
        self.reset_parameters()
        if released_init:
            overwrite_position_as_released(self)

    def reset_parameters(self) -> None:
        """Initialise what belongs to the model itself; norms have initialised themselves."""
        init_linears(self)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=0.02)

    def prefix_tokens(self, block: int) -> int:
        """How many tokens stand in front of the patches inside this block."""
        return int(0 <= self.token_enters <= block)

    def forward(self, image: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(image))

    def forward_features(self, image: Tensor) -> Tensor:
        """Tokens after the last norm, (b, [1 +] rows * cols, c)."""
        x, grid = self.embed(image)
        for i in range(len(self.blocks)):
            x = self.run_block(i, x, grid)
        return self.norm(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(self.pool(x))
        return x if pre_logits else self.head(x)

    def embed(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Patches with their positions, and a class token if it is there from the start."""
        x, grid = self.patch_embed(image)
        prefix = int(self.class_token == "start")
        positions = resize_positions(self.pos_embed, self.grid_size, grid, prefix)
        return (self.with_token(x) if prefix else x) + positions, grid

    def with_token(self, x: Tensor) -> Tensor:
        assert self.cls_token is not None
        return torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)

    def run_block(self, i: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        if self.class_token == "late" and i == self.token_enters:
            x = self.with_token(x)
        if self.grad_checkpointing and torch.is_grad_enabled():
            return checkpoint(self.blocks[i], x, grid, use_reentrant=False)
        return self.blocks[i](x, grid)

    def pool(self, x: Tensor) -> Tensor:
        if self.global_pool == "token":
            return x[:, 0]
        return x[:, self.num_prefix_tokens :].mean(1) if self.global_pool == "avg" else x

    # What timm's tools call.

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Tokens after chosen blocks: `features, [after one block, ...]`.

        Args:
            x: images.
            indices: the last n blocks, these blocks (negative: from the end), or all.
            return_prefix_tokens: (patches, class tokens) pairs; there are 0 class tokens in blocks before the token enters.
            norm: pass them through the last norm.
            stop_early: leave out blocks after the last one asked for.
            output_fmt: "NCHW" (b, c, rows, cols) or "NLC" (b, rows * cols, c).
            intermediates_only: only the list.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise nearest_match_error("output format", output_fmt, ("NCHW", "NLC"))
        taken, last = feature_take_indices(len(self.blocks), indices)
        found = []
        x, grid = self.embed(x)
        for i in range(last + 1 if stop_early else len(self.blocks)):
            x = self.run_block(i, x, grid)
            if i in taken:
                tokens = self.norm(x) if norm else x
                prefix, patches = tokens.tensor_split([self.prefix_tokens(i)], dim=1)
                if output_fmt == "NCHW":
                    patches = patches.transpose(1, 2).unflatten(2, grid).contiguous()
                found.append((patches, prefix) if return_prefix_tokens and self.num_prefix_tokens else patches)
        return found if intermediates_only else (self.norm(x), found)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove what `forward_intermediates` does not need for these blocks."""
        taken, last = feature_take_indices(len(self.blocks), indices)
        self.blocks = nn.Sequential(*list(self.blocks)[: last + 1])
        if last < self.token_enters:
            self.cls_token, self.num_prefix_tokens, self.token_enters, self.class_token = None, 0, -1, "none"
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return taken

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head. `global_pool`: "token", "avg" (mean of patches) or "" (all tokens)."""
        if global_pool is not None:
            if global_pool not in ("token", "avg", ""):
                raise nearest_match_error("pooling", global_pool, ("token", "avg", ""))
            if global_pool == "token" and not self.num_prefix_tokens:
                raise ValueError(
                    "VisionTransformer: it has no class token to pool; build it with class_token='late' or 'start'"
                )
            self.global_pool = global_pool
        self.num_classes = num_classes
        self.head = make_head(self.embed_dim, num_classes, like=self.pos_embed)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        return {"pos_embed", "cls_token"} | names_without_decay(self)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Layers by depth, for learning rates that fall with it. A late class token belongs to the block it enters."""
        blocks = [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]
        if self.class_token == "late":
            return {"stem": r"^pos_embed|^patch_embed", "blocks": [*blocks, (r"^cls_token", (self.token_enters,))]}
        return {"stem": r"^cls_token|^pos_embed|^patch_embed", "blocks": blocks}


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
def test_vit(**kwargs: Any) -> VisionTransformer:
    """A vision transformer for tests: 32 x 32 images, 4 x 4 patches of 8 pixels, 3 blocks."""
    small = {"img_size": 32, "patch_size": 8, "num_classes": 10, "embed_dim": 48, "depth": 3, "heads": 4, "norm_blocks": 2}
    return VisionTransformer(**{**small, **kwargs})
