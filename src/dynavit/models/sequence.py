"""Pre-norm transformer encoder for sequences of token ids. Vaswani et al. 2017, arXiv 1706.03762.

Axes:  b samples, t tokens, c channels. A mask (b, t), True = a real token, reaches attention and every norm; the contents of
padding change nothing.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..common.registry import nearest_match_error
from .layers import Attention, Block, Mlp, check_norm, drop_path_rates, init_linears, make_norm
from .registry import register_model
from .timm_conventions import Classifier


class SequenceTransformer(Classifier):
    """Classifies a sequence. ids (b, t) -> logits (b, num_classes).

    Args:
        vocab_size: ids are 0 ... vocab_size - 1.
        max_len: the longest sequence there is a position for, without the class token.
        norm, norm_options: a name of `list_norms` and its options, for all norms of the blocks; "dtn" is one-dimensional here.
        norm_blocks: how many blocks, from the first, carry `norm`; the rest and the last norm are LayerNorm. None: all.
        pool: classify a class "token" in front of the sequence, or the "mean" of the real tokens.
        drop_rate: dropout after embeddings, attention and MLP.
    """

    def __init__(
        self,
        vocab_size: int = 32,
        max_len: int = 2000,
        num_classes: int = 10,
        dim: int = 512,
        heads: int = 8,
        depth: int = 6,
        mlp_dim: int = 2048,
        qkv_bias: bool = True,
        norm: str = "ln",
        norm_options: dict[str, Any] | None = None,
        norm_blocks: int | None = None,
        pool: Literal["token", "mean"] = "token",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if pool not in ("token", "mean"):
            raise nearest_match_error("pooling", pool, ("token", "mean"))
        self.vocab_size, self.max_len, self.num_classes = vocab_size, max_len, num_classes
        self.embed_dim = self.num_features = self.head_hidden_size = dim
        self.norm_blocks = depth if norm_blocks is None else min(norm_blocks, depth)
        self.num_prefix_tokens = int(pool == "token")

        self.embed = nn.Embedding(vocab_size, dim)
        self.pos_embed = nn.Parameter(torch.empty(1, max_len, dim))
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if pool == "token" else None
        self.drop = nn.Dropout(drop_rate)

        def block(i: int, drop_path: float) -> Block:
            own, options = (norm, norm_options) if i < self.norm_blocks else ("ln", None)
            norms = [make_norm(own, dim, heads, options, num_prefix_tokens=self.num_prefix_tokens, ndim=1) for _ in range(2)]
            attn = Attention(dim, heads, qkv_bias=qkv_bias, proj_drop=drop_rate)
            return Block(norms[0], attn, norms[1], Mlp(dim, mlp_dim, drop=drop_rate), drop_path=drop_path)

        check_norm(norm)
        self.blocks = nn.Sequential(*(block(i, rate) for i, rate in enumerate(drop_path_rates(drop_path_rate, depth))))
        self.norm = make_norm("ln", dim, heads)
        self.head = nn.Linear(dim, num_classes) if num_classes else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise what belongs to the model itself; norms have initialised themselves."""
        init_linears(self)
        nn.init.trunc_normal_(self.embed.weight, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=0.02)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x, mask = self.forward_features(ids, mask)
        return self.forward_head(x, mask)

    def forward_features(self, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Tokens after the last norm, (b, [1 +] t, c), and the mask that goes with them."""
        self._check(ids, mask)
        length = ids.shape[1]
        if mask is not None:
            ids = torch.where(mask, ids, 0)  # padding may hold ids that do not exist
        x = self.embed(ids) + self.pos_embed[:, :length]
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)
            if mask is not None:
                mask = torch.cat([mask.new_ones(len(mask), 1), mask], 1)
        x = self.drop(x)
        for block in self.blocks:
            x = self.run(block, x, (length,), mask)
        return self.norm(x, mask=mask), mask

    def forward_head(self, x: Tensor, mask: Tensor | None = None, pre_logits: bool = False) -> Tensor:
        if self.cls_token is not None:
            x = x[:, 0]
        elif mask is None:
            x = x.mean(1)
        else:
            real = mask[..., None]
            x = torch.where(real, x, 0.0).sum(1) / real.sum(1).clamp(min=1)  # an empty sequence: 0
        return x if pre_logits else self.head(x)

    def _check(self, ids: Tensor, mask: Tensor | None) -> None:
        if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"SequenceTransformer: got {ids.dtype} {tuple(ids.shape)}; it takes integer ids (batch, tokens)")
        if ids.shape[1] > self.max_len:
            raise ValueError(
                f"SequenceTransformer: got {ids.shape[1]} tokens, but there are positions for max_len={self.max_len}; "
                "cut the sequence or build the model with a larger max_len"
            )
        if mask is not None and (mask.dtype != torch.bool or mask.shape != ids.shape):
            raise ValueError(
                f"SequenceTransformer: got a mask {mask.dtype} {tuple(mask.shape)} for ids {tuple(ids.shape)}; "
                "it is boolean, of the ids' shape, True = a real token"
            )

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Layers by depth, for learning rates that fall with it."""
        return {
            "stem": r"^cls_token|^pos_embed|^embed",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }


@register_model
def sequence_transformer(**kwargs: Any) -> SequenceTransformer:
    """Encoder for token ids: 512 channels, 8 heads, 6 blocks, up to 2,000 tokens."""
    return SequenceTransformer(**kwargs)


@register_model
def test_sequence(**kwargs: Any) -> SequenceTransformer:
    """A sequence encoder for tests: 2 blocks of 32 channels, up to 40 tokens."""
    small = {"vocab_size": 12, "max_len": 40, "dim": 32, "heads": 4, "depth": 2, "mlp_dim": 64}
    return SequenceTransformer(**{**small, **kwargs})
