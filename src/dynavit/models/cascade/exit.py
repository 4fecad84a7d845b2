"""One exit of a cascade: a whole classifier with its own tokens, which may reuse tokens and attention of the exit before.

Axes:  b samples, t tokens (class token first, then row-major), s those of the exit before, c channels, h heads, l blocks.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..conv_tokens import ConvTokens, Grid, Split
from ..layers import Mlp, drop_path_rates, init_linears, make_norm
from ..t2t import TokensToToken, sinusoid
from .options import Blocks, Reuse, Tokens
from .reuse import FeatureReuse, RelationReuse, ReuseAttention, ReuseBlock
from .upsample import Upsample


class Exit(nn.Module):
    """(b, in_chans, height, width) and what is reused -> logits (b, num_classes) and what can be reused of this exit.

    Args:
        splits: of its own tokenizer, one of `tokens.splits`.
        depth: how many blocks it has.
        before: the grid of the exit before; None for the first exit, which reuses nothing.
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
        depth: int,
        before: Grid | None,
        tokens: Tokens,
        blocks: Blocks,
        reuse: Reuse,
        norm: str,
        norm_options: dict[str, Any],
    ) -> None:
        super().__init__()
        dim, heads, eps = blocks.embed_dim, blocks.heads, blocks.eps
        if before is None:
            reuse = replace(reuse, feature=False, relation=False)
        self.tokenizer: TokensToToken | ConvTokens
        if len(splits) > 1 and tokens.kind == "soft":
            self.tokenizer = TokensToToken(
                dim, splits=tuple(splits), in_chans=in_chans, width=tokens.width, drop=tokens.drop_rate
            )
        else:
            self.tokenizer = ConvTokens(dim, splits, in_chans, tokens.width, norm=tokens.norm)
        self.grid, self.pool = self.tokenizer.grids(img_size)[-1], tokens.pool
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        shape = (1 + math.prod(self.grid), dim)
        if tokens.positions == "learned":
            self.pos_embed = nn.Parameter(torch.empty(1, *shape))
        else:
            self.register_buffer("pos_embed", sinusoid(*shape).to(self.cls_token))
        self.upsample = Upsample(before, self.grid) if before is not None and (reuse.feature or reuse.relation) else None
        self.relation_reuse = RelationReuse(depth, heads) if reuse.relation else None

        # LayerNorm has no heads: it sees the channels in the release's order. See ReuseBlock.
        reused, join_heads = reuse.width if reuse.feature else 0, 1 if norm == "ln" else heads
        if reused % join_heads:
            raise ValueError(
                f"Cascade: {reused} reused channels cannot be shared out to {heads} heads of the norm {norm!r}; "
                f"take a reuse.width that is a multiple of {heads}"
            )
        options = {"eps": eps, **norm_options}
        self.blocks = nn.ModuleList(
            ReuseBlock(
                make_norm(norm, dim, join_heads, options, num_prefix_tokens=1),
                ReuseAttention(dim, heads, qkv_bias=blocks.qkv_bias),
                make_norm(norm, dim + reused, join_heads, options, num_prefix_tokens=1),
                Mlp(dim + reused, int(dim * blocks.mlp_ratio), out=dim),
                FeatureReuse(dim, reuse.hidden, reuse.width, eps) if reuse.feature else None,
                join_heads=join_heads,
                drop_path=rate,
            )
            for rate in drop_path_rates(blocks.drop_path_rate, depth)
        )
        self.norm = make_norm("ln", dim, 1, {"eps": eps})
        self.head: nn.Linear | nn.Identity = nn.Linear(dim, num_classes) if num_classes else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linears(self)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        if isinstance(self.pos_embed, nn.Parameter):
            nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(
        self, images: Tensor, features: Tensor | None = None, relations: Tensor | None = None, *, keep_relations: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """features (b, s, c) and relations (b, l * h, s, s) of the exit before -> logits, this exit's features (b, t, c), and
        its relations (b, l * h, t, t) if they are kept.
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
        answer = self.norm(x[:, :1] if self.pool == "token" else x[:, 1:]).mean(1)
        return self.head(answer), x, torch.cat(kept, 1) if keep_relations else None
