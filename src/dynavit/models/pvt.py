"""Pyramid Vision Transformer. Wang et al. 2021, arXiv 2102.12122; with any norm in stages 1-3 as in DTN, arXiv 2112.02624.

Axes:  b samples, t tokens, c channels, h heads, d = c / h channels of a head, n keys.
Stages are counted from 1, as in the names of the parameters, which are those of the DTN release.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from ..norms.contract import Grid, Norm
from .attend import attend
from .layers import (
    NORM_SITES,
    Block,
    Mlp,
    check_norm,
    drop_path_rates,
    init_linears,
    make_norm,
    overwrite_position_as_released,
    pair,
    patch_grid,
    resize_positions,
)
from .registry import register_model
from .timm_conventions import ImageClassifier

STAGES: tuple[int, ...] = (1, 2, 3, 4)


class ReducedAttention(nn.Module):
    """Attention of all tokens to cells of reduction x reduction tokens. (b, t, c) on a grid -> (b, t, c).

    Each token has a query, each cell a key and a value. Rows and columns that do not fill a cell are left out, as by any
    strided convolution. With a mask, cells without a real token are left out too, unless `hides_padding` is False; tokens of
    padding are 0, as norms leave them.
    """

    hides_padding = True

    def __init__(
        self, dim: int, heads: int, reduction: int, *, qkv_bias: bool = True, attn_drop: float = 0.0, proj_drop: float = 0.0
    ) -> None:
        super().__init__()
        self.heads, self.num_heads, self.reduction, self.attn_drop = heads, heads, reduction, attn_drop
        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        if reduction > 1:
            self.sr = nn.Conv2d(dim, dim, reduction, reduction)
            self.norm = make_norm("ln", dim, heads)

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (b, h, t, d)
        source, real = x, mask
        if self.reduction > 1:
            assert grid is not None, "the grid comes from the model"
            image = x.transpose(1, 2).unflatten(2, grid)
            real = None if mask is None else self._cells(mask.unflatten(1, grid))
            source = self.norm(self.sr(image).flatten(2).transpose(1, 2), mask=real)
        k, v = self.kv(source).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (b, h, n, d)
        keys = real[:, None, None, :] if real is not None and self.hides_padding else None  # (b, 1, 1, n)
        y = attend(q, k, v, mask=keys, drop=self.attn_drop if self.training else 0.0)
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))

    def _cells(self, mask: Tensor) -> Tensor:
        """(b, rows, cols) -> (b, n), True for cells with a real token."""
        return F.max_pool2d(mask.float(), self.reduction).bool().flatten(1)


class PatchEmbed(nn.Module):
    """Patches to normalised tokens. (b, c_in, rows * patch, cols * patch) -> (b, rows * cols, c)."""

    def __init__(self, in_chans: int, dim: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, dim, patch, patch)
        self.norm = make_norm("ln", dim, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, tuple[int, int]]:
        x = self.proj(x)
        return self.norm(x.flatten(2).transpose(1, 2), mask=mask), (x.shape[2], x.shape[3])


class PyramidVisionTransformer(ImageClassifier):
    """Four stages of transformer blocks on grids of 1/4, 1/8, 1/16 and 1/32 of the image; a class token joins in the last.

    (b, in_chans, height, width) -> (b, num_classes). Any image whose sides are multiples of `patch_size` and at least 8 patches
    long; a grid of odd size loses its last row or column in the next stage. Positions are resized to the grid at hand.

    Args:
        heads: of each stage. The DTN release has (4, 4, 5, 8) with every norm, the PVT paper (1, 2, 5, 8).
        norm: name of the norm in the blocks of stages 1-3. All else (stage 4, after patch embedding and spatial reduction, at
            the end) is LayerNorm. "dtn" sees every token; "dtn_released" pools large grids as the release does.
        norm_options: options of that norm. Unless told otherwise LayerNorm in blocks has eps 1e-6.
        norm_sites: which norms of a block: before attention ("attn"), before the MLP ("mlp"), or "both".
        norm_pool: side of the cells over which that norm pools its inter-token statistics, for each of stages 1-3; (4, 2, 1) in
            the DTN paper. The norm has to have the option `pool`.
        released_init: start DTN's `position` from a truncated normal, as released models do by mistake.
        drop_rate: dropout before the classifier.
        pos_drop_rate, proj_drop_rate, attn_drop_rate: dropout after positions, after projections and in the MLP, and on
            attention weights.
        drop_path_rate: stochastic depth of the last block; it grows linearly with depth.
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 4,
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dims: tuple[int, ...] = (64, 128, 320, 512),
        depths: tuple[int, ...] = (2, 2, 2, 2),
        heads: tuple[int, ...] = (4, 4, 5, 8),
        mlp_ratios: tuple[int, ...] = (8, 8, 4, 4),
        reductions: tuple[int, ...] = (8, 4, 2, 1),
        qkv_bias: bool = True,
        norm: str = "ln",
        norm_options: dict[str, Any] | None = None,
        norm_sites: Literal["both", "attn", "mlp"] = "both",
        norm_pool: tuple[int, ...] | None = None,
        released_init: bool = False,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_norm(norm, norm_sites)
        sizes = {"depths": depths, "heads": heads, "mlp_ratios": mlp_ratios, "reductions": reductions}
        for name, values in {"embed_dims": embed_dims, **sizes}.items():
            if len(values) != len(STAGES):
                raise ValueError(f"PyramidVisionTransformer: {name} has one number for each of four stages; got {values}")
        if norm_pool is not None and len(norm_pool) != len(STAGES) - 1:
            raise ValueError(f"PyramidVisionTransformer: norm_pool has one number for each of stages 1-3; got {norm_pool}")
        self.img_size, self.patch_size, self.in_chans = pair(img_size), patch_size, in_chans
        self.embed_dims, self.reductions, self.stages = tuple(embed_dims), tuple(reductions), STAGES
        self.num_prefix_tokens, self.global_pool = 1, "token"  # of the last stage
        self.grids = grids = self._grids(torch.empty(0, in_chans, *self.img_size, device="meta"))
        rates = iter(drop_path_rates(drop_path_rate, sum(depths)))

        def norm_at(stage: int, site: str) -> Norm:
            chosen = stage < STAGES[-1] and site in NORM_SITES[norm_sites]
            own, given = (norm, norm_options) if chosen else ("ln", None)
            options: dict[str, Any] = {"eps": 1e-6} if own == "ln" else {}
            if own == "dtn_released":
                options["pool"] = released_pool(grids[stage - 1])
            if chosen and norm_pool is not None and own != "ln":
                options["pool"] = norm_pool[stage - 1]
            return make_norm(own, embed_dims[stage - 1], heads[stage - 1], {**options, **(given or {})})

        for stage, dim, depth, h, ratio, reduction in zip(STAGES, embed_dims, *sizes.values(), strict=True):
            grid, last = grids[stage - 1], stage == STAGES[-1]
            blocks = [
                Block(
                    norm_at(stage, "attn"),
                    ReducedAttention(dim, h, reduction, qkv_bias=qkv_bias, attn_drop=attn_drop_rate, proj_drop=proj_drop_rate),
                    norm_at(stage, "mlp"),
                    Mlp(dim, ratio * dim, drop=proj_drop_rate),
                    drop_path=next(rates),
                )
                for _ in range(depth)
            ]
            came_from = in_chans if stage == 1 else embed_dims[stage - 2]
            setattr(self, f"patch_embed{stage}", PatchEmbed(came_from, dim, patch_size if stage == 1 else 2))
            setattr(self, f"pos_embed{stage}", nn.Parameter(torch.zeros(1, grid[0] * grid[1] + last, dim)))
            setattr(self, f"block{stage}", nn.ModuleList(blocks))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dims[-1]))
        self.pos_drop = nn.Dropout(pos_drop_rate)
        self.norm: nn.Module = make_norm("ln", embed_dims[-1], 1, {"eps": 1e-6})
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(embed_dims[-1], num_classes) if num_classes else nn.Identity()

        self.feature_info = [
            {"num_chs": dim, "reduction": patch_size * 2**at, "module": f"block{at + 1}"} for at, dim in enumerate(embed_dims)
        ]
        self.introduce(self.img_size, in_chans, num_classes, embed_dims[-1], first_conv="patch_embed1.proj", crop_pct=0.9)
        init_linears(self)
        for positions in (self.cls_token, *(self.get_parameter(f"pos_embed{stage}") for stage in STAGES)):
            nn.init.trunc_normal_(positions, std=0.02)
        if released_init:
            overwrite_position_as_released(self)

    def forward_features(self, image: Tensor) -> Tensor:
        """(b, in_chans, height, width) -> (b, 1 + t, c), the last stage's tokens after the final norm, class token first."""
        self._grids(image)
        x = image
        for stage in self.stages:
            x, grid = self._tokens(x, stage)
            if stage < STAGES[-1]:
                x = _image(x, grid)
        return self.norm(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """The features, and a (b, c, rows, cols) map of each stage asked for (class token left out).

        Args:
            indices: which of the four stages, counted from 0; a number takes the last ones.
            norm: apply the final norm to the last stage's map.
            stop_early: leave out stages after the last one asked for; the features are then that stage's tokens.
            intermediates_only: return the maps alone.
        """
        if str(getattr(output_fmt, "value", output_fmt)) != "NCHW":
            raise ValueError(
                f"PyramidVisionTransformer: stages have grids of different size, so maps are 'NCHW'; got {output_fmt!r}"
            )
        take, deepest = feature_take_indices(len(self.stages), indices)
        self._grids(x)
        maps = []
        for at, stage in enumerate(self.stages[: deepest + 1] if stop_early or intermediates_only else self.stages):
            x, grid = self._tokens(x, stage)
            last = stage == STAGES[-1]
            shown = (self.norm(x) if norm else x)[:, 1:] if last else x
            if at in take:
                maps.append(_image(shown, grid))
            if not last:
                x = _image(x, grid)
        if intermediates_only:
            return maps
        return (self.norm(x) if x.dim() == 3 else x), maps

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove what `forward_intermediates` does not need for these stages."""
        take, deepest = feature_take_indices(len(self.stages), indices)
        for stage in self.stages[deepest + 1 :]:
            for part in ("patch_embed", "pos_embed", "block"):
                delattr(self, f"{part}{stage}")
            if stage == STAGES[-1]:
                del self.cls_token
                self.num_prefix_tokens = 0
        self.stages = self.stages[: deepest + 1]
        if prune_norm or self.stages != STAGES:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0)
        return take

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Layers by depth, for learning rates that fall with it: blocks, or whole stages."""
        first = () if coarse else (0,)  # what makes a stage's tokens belongs to its first block
        blocks = [
            (r"^(?:patch_embed|pos_embed)(\d+)", first),
            (r"^block(\d+)" if coarse else r"^block(\d+)\.(\d+)", None),
            (r"^cls_token", (STAGES[-1], *first)),
            (r"^norm", (99999,)),
        ]
        return {"stem": r"^(?:patch_embed|pos_embed)1", "blocks": blocks}

    def _tokens(self, x: Tensor, stage: int) -> tuple[Tensor, tuple[int, int]]:
        """An image or the previous stage's map -> this stage's tokens, class token first in the last stage, and their grid."""
        prefix = int(stage == STAGES[-1])
        x, grid = self.get_submodule(f"patch_embed{stage}")(x)
        if prefix:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)
        positions = self.get_parameter(f"pos_embed{stage}")
        x = self.pos_drop(x + resize_positions(positions, self.grids[stage - 1], grid, prefix))
        for block in self.get_submodule(f"block{stage}").children():
            x = self.run(block, x, grid)
        return x, grid

    def _grids(self, x: Tensor) -> list[tuple[int, int]]:
        """The four grids of an image, or an error that says what would fit."""
        rows, cols = patch_grid(type(self).__name__, x, pair(self.patch_size), self.in_chans)
        grids = [(rows // 2**at, cols // 2**at) for at in range(len(STAGES))]
        need = max(2**at * reduction for at, reduction in enumerate(self.reductions))
        if min(rows, cols) < need:
            raise ValueError(
                f"PyramidVisionTransformer: an image of {x.shape[2]}x{x.shape[3]} has {rows}x{cols} patches; four stages "
                f"need at least {need}x{need}: an image of {need * self.patch_size} pixels, or a smaller patch_size"
            )
        return grids


def released_pool(grid: tuple[int, int], side: int = 14) -> int:
    """Side of the cells over which released DTN pools: grid // 14 on larger grids, or the next smaller number that divides it.

    >>> [released_pool((n, n)) for n in (56, 28, 14, 7)]
    [4, 2, 1, 1]
    """
    return next(pool for pool in range(max(min(grid) // side, 1), 0, -1) if not any(n % pool for n in grid))


def _image(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """(b, t, c) -> (b, c, rows, cols)."""
    return tokens.transpose(1, 2).unflatten(2, grid).contiguous()


@register_model
def pvt_tiny(**kwargs: Any) -> PyramidVisionTransformer:
    """PVT-Tiny, 13.2M parameters."""
    return PyramidVisionTransformer(**{"depths": (2, 2, 2, 2), **kwargs})


@register_model
def pvt_small(**kwargs: Any) -> PyramidVisionTransformer:
    """PVT-Small, 24.5M parameters."""
    return PyramidVisionTransformer(**{"depths": (3, 4, 6, 3), **kwargs})


@register_model
def pvt_medium(**kwargs: Any) -> PyramidVisionTransformer:
    """PVT-Medium, 44.2M parameters."""
    return PyramidVisionTransformer(**{"depths": (3, 4, 18, 3), **kwargs})


@register_model
def pvt_large(**kwargs: Any) -> PyramidVisionTransformer:
    """PVT-Large, 61.4M parameters."""
    return PyramidVisionTransformer(**{"depths": (3, 8, 27, 3), **kwargs})


@register_model
def pvt_nano(**kwargs: Any) -> PyramidVisionTransformer:
    """A PVT for two CPU cores: four blocks of 32, 64, 160 and 256 channels."""
    return PyramidVisionTransformer(**{"embed_dims": (32, 64, 160, 256), "depths": (1, 1, 1, 1), **kwargs})


@register_model
def test_pvt(**kwargs: Any) -> PyramidVisionTransformer:
    """A tiny PVT for tests: 32-pixel images in patches of 2."""
    small = {"img_size": 32, "patch_size": 2, "embed_dims": (8, 16, 20, 32), "depths": (1, 1, 1, 1), "heads": (1, 2, 5, 8)}
    return PyramidVisionTransformer(**{**small, "mlp_ratios": (2, 2, 2, 2), "num_classes": 10, **kwargs})
