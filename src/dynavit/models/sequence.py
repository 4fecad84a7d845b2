"""Pre-norm transformer encoder for sequences of token ids, as the Long Range Arena has it. Tay et al. 2020, arXiv 2011.04006.

    ids -> embedding -> class vector in front -> + sinusoids -> blocks -> norm -> first row -> linear, ReLU, linear

Attention and norm are chosen independently: norms see the tokens in their order, and whatever an attention sorts, cuts or pads
it undoes again.

Axes:  b samples, t tokens, c channels. A mask (b, t), True = a real token, reaches attention and every norm; the contents of
padding change nothing.
"""

import inspect
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..common.registry import nearest_match_error
from ..norms.contract import Grid
from .bigbird import BigBirdAttention
from .layers import Attention, Block, Mlp, check_norm, drop_path_rates, make_norm
from .reformer import ArenaReformerAttention, ReformerAttention
from .registry import register_model
from .t2t import sinusoid
from .timm_conventions import Classifier


class FullAttention(Attention):
    """Every token attends to every real one; without biases. Its weights are dropped too, as in the arena only here."""

    def __init__(self, dim: int, heads: int, length: int, *, proj_drop: float = 0.0) -> None:
        super().__init__(dim, heads, proj_bias=False, attn_drop=proj_drop, proj_drop=proj_drop)


ATTENTIONS: dict[str, type[nn.Module]] = {
    "full": FullAttention,
    "bigbird": BigBirdAttention,
    "reformer": ReformerAttention,
    "reformer_arena": ArenaReformerAttention,
}


class SequenceTransformer(Classifier):
    """Classifies a sequence. ids (b, t) -> logits (b, num_classes).

    Started as in JAX: N(0, 1) for embeddings, Xavier's uniform for attention and MLPs, LeCun's normal for the two last layers.

    Args:
        vocab_size: ids are 0 ... vocab_size - 1; 0 is padding.
        max_len: the longest sequence, without the class token. Attention in blocks or chunks is laid out for it.
        norm, norm_options: a name of `list_norms` and its options, for all norms; "dtn" is one-dimensional here.
        norm_blocks: how many blocks, from the first, carry `norm`; the rest and the last norm are LayerNorm. None: all of them.
        norm_mask: norms leave padding out. False: they count it, as code that does not know of masks does; for comparisons.
        attention: "full", "bigbird", "reformer", or "reformer_arena", the Long Range Arena's form of it.
        attention_options: block, random, random_limit of BigBird; chunk, rounds of Reformer; buckets of the arena's.
        tied: all blocks are the same one, with one set of weights.
        pool: classify a class "token" in front of the sequence, or the "mean" of the real tokens.
        drop_rate: dropout after embeddings, attention and in MLPs, and on the weights of full attention.
    """

    positions: Tensor

    def __init__(
        self,
        vocab_size: int = 17,
        max_len: int = 2000,
        num_classes: int = 10,
        dim: int = 512,
        heads: int = 8,
        depth: int = 6,
        mlp_dim: int = 2048,
        norm: str = "ln",
        norm_options: dict[str, Any] | None = None,
        norm_blocks: int | None = None,
        norm_mask: bool = True,
        attention: str = "full",
        attention_options: dict[str, Any] | None = None,
        tied: bool = False,
        pool: Literal["token", "mean"] = "token",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if pool not in ("token", "mean"):
            raise nearest_match_error("pooling", pool, ("token", "mean"))
        if tied and norm_blocks not in (None, depth):
            raise ValueError(
                f"SequenceTransformer: tied blocks are one block, so norm_blocks={norm_blocks} cannot be told apart"
            )
        self.vocab_size, self.max_len, self.num_classes = vocab_size, max_len, num_classes
        self.embed_dim, self.num_features, self.head_hidden_size = dim, mlp_dim, mlp_dim
        self.depth, self.norm_mask = depth, norm_mask
        self.norm_blocks = depth if norm_blocks is None else min(norm_blocks, depth)
        self.num_prefix_tokens = int(pool == "token")
        length = max_len + self.num_prefix_tokens

        self.embed = nn.Embedding(vocab_size, dim)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if pool == "token" else None
        self.register_buffer("positions", torch.empty(1, length, dim), persistent=False)
        self.drop = nn.Dropout(drop_rate)

        def own_norm(carries: bool) -> Any:
            own, options = (norm, norm_options) if carries else ("ln", None)
            return make_norm(own, dim, heads, options, num_prefix_tokens=self.num_prefix_tokens, ndim=1)

        def block(i: int, drop_path: float) -> Block:
            norm1, norm2 = (own_norm(i < self.norm_blocks) for _ in range(2))
            attn = make_attention(attention, dim, heads, length, i, drop_rate, attention_options)
            mlp = Mlp(dim, mlp_dim, drop=drop_rate, gelu="tanh")
            return (Block if norm_mask else PadBlindBlock)(norm1, attn, norm2, mlp, drop_path=drop_path)

        check_norm(norm)
        rates = [drop_path_rate] if tied else drop_path_rates(drop_path_rate, depth)
        self.blocks = nn.Sequential(*(block(i, rate) for i, rate in enumerate(rates)))
        self.norm = own_norm(self.norm_blocks == depth)
        self.hidden = nn.Linear(dim, mlp_dim)
        self.head = nn.Linear(mlp_dim, num_classes) if num_classes else nn.Identity()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise what belongs to the model itself; norms have initialised themselves."""
        self.positions.copy_(sinusoid(*self.positions.shape[1:]))
        nn.init.normal_(self.embed.weight)
        if self.cls_token is not None:
            nn.init.zeros_(self.cls_token)
        for name, linear in self.blocks.named_modules():
            if isinstance(linear, nn.Linear):
                for part in linear.weight.chunk(3 if name.endswith("qkv") else 1):  # queries, keys and values by themselves
                    nn.init.xavier_uniform_(part)
                if linear.bias is not None:
                    nn.init.normal_(linear.bias, std=1e-6)
        for linear in (self.hidden, self.head):
            if isinstance(linear, nn.Linear):
                nn.init.normal_(linear.weight, std=1 / math.sqrt(linear.in_features))
                nn.init.zeros_(linear.bias)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x, mask = self.forward_features(ids, mask)
        return self.forward_head(x, mask)

    def forward_features(self, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Tokens after the last norm, (b, [1 +] t, c), and the mask that goes with them."""
        self._check(ids, mask)
        length = ids.shape[1]
        if mask is not None:
            ids = torch.where(mask, ids, 0)  # padding may hold ids that do not exist
        x = self.embed(ids)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)
            if mask is not None:
                mask = torch.cat([mask.new_ones(len(mask), 1), mask], 1)
        x = self.drop(x + self.positions[:, : x.shape[1]].to(x.dtype))
        if mask is not None and self.norm_mask:
            x = torch.where(mask[..., None], x, 0.0)  # in attention a weight of 0 times NaN would be NaN
        for _ in range(self.depth // len(self.blocks)):  # tied blocks are one, used again and again
            for block in self.blocks:
                x = self.run(block, x, (length,), mask)
        return self.norm(x, (length,), mask if self.norm_mask else None), mask

    def forward_head(self, x: Tensor, mask: Tensor | None = None, pre_logits: bool = False) -> Tensor:
        if self.cls_token is not None:
            x = x[:, 0]
        elif mask is None:
            x = x.mean(1)
        else:
            real = mask[..., None]
            x = torch.where(real, x, 0.0).sum(1) / real.sum(1).clamp(min=1)  # an empty sequence: 0
        x = self.hidden(x).relu()
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
            "stem": r"^cls_token|^embed",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }


class PadBlindBlock(Block):
    """A block whose norms count padding among the tokens; attention leaves it out as ever."""

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x, grid), grid, mask))
        return x + self.drop_path(self.mlp(self.norm2(x, grid), grid, mask))


def make_attention(
    kind: str, dim: int, heads: int, length: int, layer: int, drop: float, options: dict[str, Any] | None = None
) -> nn.Module:
    """An attention for one block. Those that draw something draw by the number of their layer, unless a seed is given."""
    if kind not in ATTENTIONS:
        raise nearest_match_error("attention", kind, ATTENTIONS)
    asks = set(inspect.signature(ATTENTIONS[kind]).parameters) - {"dim", "heads", "length"}
    for option in options or {}:
        if option not in asks - {"proj_drop"}:
            raise nearest_match_error(f"option of the attention {kind!r}", option, asks - {"proj_drop"})
    told = {name: value for name, value in {"seed": layer, "proj_drop": drop}.items() if name in asks}
    return ATTENTIONS[kind](dim, heads, length, **{**told, **(options or {})})


@register_model
def sequence_transformer(**kwargs: Any) -> SequenceTransformer:
    """Encoder for token ids: 512 channels, 8 heads, 6 blocks, up to 2,000 tokens."""
    return SequenceTransformer(**kwargs)


@register_model
def sequence_bigbird(**kwargs: Any) -> SequenceTransformer:
    """sequence_transformer with BigBird's attention: blocks of 64 tokens, 3 of them drawn."""
    return SequenceTransformer(**{"attention": "bigbird", **kwargs})


@register_model
def sequence_reformer(**kwargs: Any) -> SequenceTransformer:
    """sequence_transformer with the Reformer's attention: chunks of 64 tokens of like content."""
    return SequenceTransformer(**{"attention": "reformer", **kwargs})


@register_model
def sequence_micro(**kwargs: Any) -> SequenceTransformer:
    """An encoder for short sequences: 64 channels, 4 heads, 2 blocks, up to 200 tokens."""
    small = {"max_len": 200, "dim": 64, "heads": 4, "depth": 2, "mlp_dim": 128}
    return SequenceTransformer(**{**small, **kwargs})


@register_model
def test_sequence(**kwargs: Any) -> SequenceTransformer:
    """A sequence encoder for tests: 2 blocks of 32 channels, up to 40 tokens."""
    small = {"vocab_size": 12, "max_len": 40, "dim": 32, "heads": 4, "depth": 2, "mlp_dim": 64}
    return SequenceTransformer(**{**small, **kwargs})
