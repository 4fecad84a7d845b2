"""The part of a vision transformer behind its tokenizer: blocks on one grid, the last norm, a pooling and the classifier.

Axes:  b samples, t tokens, c channels. Patches are row-major on a (rows, cols) grid, a class token stands in front.
"""

from typing import Any

import torch
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from ..common.registry import nearest_match_error
from ..norms import Norm
from .layers import (
    NORM_SITES,
    Attention,
    Block,
    Mlp,
    drop_path_rates,
    init_linears,
    make_norm,
    overwrite_position_as_released,
)
from .timm_conventions import ImageClassifier


class Trunk(ImageClassifier):
    """(b, in_chans, height, width) -> (b, num_classes), with tokens as a subclass makes them in `embed`.

    A subclass calls `place_token`, registers its tokenizer, positions and class token, then calls `add_blocks` and `finish`.
    """

    pos_embed: Tensor
    cls_token: nn.Parameter | None
    blocks: nn.Sequential
    norm: nn.Module
    init_std: float = 0.02  # of linears

    def embed(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Tokens with their positions, (b, [1 +] rows * cols, c), and their grid."""
        raise NotImplementedError

    def place_token(self, class_token: str, norm_blocks: int, depth: int) -> None:
        """Decide before which block the class token enters: "late", after `norm_blocks` blocks, at the "start", or "none"."""
        self.class_token, self.norm_blocks = class_token, norm_blocks
        self.token_enters = {"none": -1, "start": 0, "late": min(norm_blocks, depth - 1)}[class_token]  # -1: never
        self.num_prefix_tokens = 0 if class_token == "none" else 1
        self.global_pool = "token" if self.num_prefix_tokens else "avg"

    def add_blocks(
        self,
        dim: int,
        depth: int,
        heads: int,
        mlp_ratio: float,
        *,
        norm: str,
        norm_options: dict[str, Any] | None,
        norm_sites: str,
        drop_path_rate: float,
        proj_drop: float = 0.0,
        **attention: Any,
    ) -> None:
        """Add `depth` blocks. The first `norm_blocks` carry `norm` before "attn", "mlp" or both, other norms are LayerNorm."""

        def norm_at(block: int, site: str) -> Norm:
            if block >= self.norm_blocks or site not in NORM_SITES[norm_sites]:
                return make_norm("ln", dim, heads)
            return make_norm(norm, dim, heads, norm_options, num_prefix_tokens=self.prefix_tokens(block))

        self.blocks = nn.Sequential(
            *(
                Block(
                    norm_at(i, "attn"),
                    Attention(dim, heads, proj_drop=proj_drop, **attention),
                    norm_at(i, "mlp"),
                    Mlp(dim, int(dim * mlp_ratio), drop=proj_drop),
                    drop_path=rate,
                )
                for i, rate in enumerate(drop_path_rates(drop_path_rate, depth))
            )
        )

    def finish(
        self,
        img_size: tuple[int, int],
        in_chans: int,
        num_classes: int,
        embed_dim: int,
        heads: int,
        *,
        drop_rate: float,
        reduction: int,
        first_conv: str,
        crop_pct: float = 0.875,
        released_init: bool = False,
    ) -> None:
        """Add the last norm and the head, introduce the model to timm, and initialise it."""
        self.embed_dim = embed_dim
        self.norm = make_norm("ln", embed_dim, heads)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()
        self.feature_info = [
            {"module": f"blocks.{i}", "num_chs": embed_dim, "reduction": reduction} for i in range(len(self.blocks))
        ]
        self.introduce(img_size, in_chans, num_classes, embed_dim, first_conv=first_conv, crop_pct=crop_pct)
        self.reset_parameters()
        if released_init:
            overwrite_position_as_released(self)

    def reset_parameters(self) -> None:
        """Initialise what belongs to the model itself; norms have initialised themselves."""
        init_linears(self, self.init_std)
        for bare in (self.pos_embed, self.cls_token):
            if isinstance(bare, nn.Parameter):  # positions may be fixed
                nn.init.trunc_normal_(bare, std=0.02)

    def prefix_tokens(self, block: int) -> int:
        """The number of tokens in front of the patches inside this block."""
        return int(0 <= self.token_enters <= block)

    def forward_features(self, image: Tensor) -> Tensor:
        """Tokens after the last norm, (b, [1 +] rows * cols, c)."""
        x, grid = self.embed(image)
        for i in range(len(self.blocks)):
            x = self.run_block(i, x, grid)
        return self.norm(x)

    def with_token(self, x: Tensor) -> Tensor:
        assert self.cls_token is not None
        return torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)

    def run_block(self, i: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        if self.class_token == "late" and i == self.token_enters:
            x = self.with_token(x)
        return self.run(self.blocks[i], x, grid)

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

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Layers by depth, for learning rates that fall with it. A late class token belongs to the block it enters."""
        stem, blocks = r"^pos_embed|^patch_embed|^tokens_to_token", [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]
        if self.class_token == "late":
            return {"stem": stem, "blocks": [*blocks, (r"^cls_token", (self.token_enters,))]}
        return {"stem": rf"^cls_token|{stem}", "blocks": blocks}
