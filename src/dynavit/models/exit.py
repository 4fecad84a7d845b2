"""One exit of a cascade: a whole classifier with its own tokens, which may reuse what another has found.

Axes:  b samples, t tokens (class token first, then row-major), s those of the exit before, c channels, h heads, l blocks.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..common.registry import nearest_match_error
from .conv_tokens import ConvTokens, Grid, Split
from .layers import Mlp, drop_path_rates, init_linears, make_norm
from .reuse import FeatureReuse, RelationReuse, ReuseAttention, ReuseBlock
from .t2t import TokensToToken, sinusoid
from .upsample import Upsample


class Exit(nn.Module):
    """(b, in_chans, height, width) and what is reused -> logits (b, num_classes) and what can be.

    Args:
        splits, tokens: the tokenizer's, see `Cascade`.
        before: the grid of the exit before, None for the first one, which reuses nothing.
        The others: see `Cascade`.
    """

    pos_embed: Tensor

    def __init__(
        self,
        *,
        img_size: Grid,
        in_chans: int,
        num_classes: int,
        splits: Sequence[Split],
        tokens: Literal["soft", "conv"],
        before: Grid | None,
        embed_dim: int,
        depth: int,
        heads: int,
        mlp_ratio: float,
        qkv_bias: bool,
        positions: Literal["sinusoid", "learned"],
        eps: float,
        feature_reuse: bool,
        relation_reuse: bool,
        feature_hidden: int,
        feature_width: int,
        norm: str,
        norm_options: dict[str, Any],
        token_width: int,
        token_drop_rate: float,
        drop_path_rate: float,
    ) -> None:
        super().__init__()
        if positions not in ("sinusoid", "learned"):
            raise nearest_match_error("kind of positions", positions, ("sinusoid", "learned"))
        if tokens not in ("soft", "conv"):
            raise nearest_match_error("kind of tokens", tokens, ("soft", "conv"))
        feature_reuse, relation_reuse = feature_reuse and before is not None, relation_reuse and before is not None
        self.tokenizer: TokensToToken | ConvTokens
        if len(splits) > 1 and tokens == "soft":
            self.tokenizer = TokensToToken(
                embed_dim, splits=tuple(splits), in_chans=in_chans, width=token_width, drop=token_drop_rate
            )
        else:
            self.tokenizer = ConvTokens(embed_dim, splits, in_chans, token_width)
        self.grid = self.tokenizer.grids(img_size)[-1]
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        shape = (1 + math.prod(self.grid), embed_dim)
        if positions == "learned":
            self.pos_embed = nn.Parameter(torch.empty(1, *shape))
        else:
            self.register_buffer("pos_embed", sinusoid(*shape).to(self.cls_token))
        self.upsample = Upsample(before, self.grid) if before is not None and (feature_reuse or relation_reuse) else None
        self.relation_reuse = RelationReuse(depth, heads) if relation_reuse else None

        # LayerNorm has no heads: it sees the channels in the release's order. See ReuseBlock.
        reused, join_heads = feature_width if feature_reuse else 0, 1 if norm == "ln" else heads
        if reused % join_heads:
            raise ValueError(
                f"Cascade: {reused} reused channels cannot be shared out to {heads} heads of the norm {norm!r}; "
                f"take a feature_width that is a multiple of {heads}"
            )
        options = {"eps": eps, **norm_options}
        self.blocks = nn.ModuleList(
            ReuseBlock(
                make_norm(norm, embed_dim, join_heads, options, num_prefix_tokens=1),
                ReuseAttention(embed_dim, heads, qkv_bias=qkv_bias),
                make_norm(norm, embed_dim + reused, join_heads, options, num_prefix_tokens=1),
                Mlp(embed_dim + reused, int(embed_dim * mlp_ratio), out=embed_dim),
                FeatureReuse(embed_dim, feature_hidden, feature_width, eps) if feature_reuse else None,
                join_heads=join_heads,
                drop_path=rate,
            )
            for rate in drop_path_rates(drop_path_rate, depth)
        )
        self.norm = make_norm("ln", embed_dim, 1, {"eps": eps})
        self.head: nn.Linear | nn.Identity = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linears(self)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        if isinstance(self.pos_embed, nn.Parameter):
            nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(
        self, images: Tensor, features: Tensor | None = None, relations: Tensor | None = None, *, keep_relations: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """features (b, s, c), relations (b, l * h, s, s) -> logits, this exit's own features (b, t, c), and its relations
        (b, l * h, t, t) if they are kept.
        """
        x, grid = self.tokenizer(images)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1).to(x.dtype), x], 1) + self.pos_embed
        upsample = self.upsample(x) if self.upsample is not None else None
        biases: Sequence[Tensor | None] = [None] * len(self.blocks)
        if self.relation_reuse is not None:
            assert relations is not None
            biases = self.relation_reuse(relations).unbind(0)
        kept = []
        for block, bias in zip(self.blocks, biases, strict=True):
            x, logits = block(x, grid, upsample, features, bias, keep_relations)
            kept.append(logits)
        return self.head(self.norm(x[:, :1])[:, 0]), x, torch.cat(kept, 1) if keep_relations else None
