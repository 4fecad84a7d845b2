"""Features and relations of an earlier exit of a cascade, reused by a later one. Wang et al., NeurIPS 2021, arXiv 2105.15075.

Axes:  b samples, n tokens of the earlier exit and m of this one (class token first), c channels, h heads, l blocks.
"""

import torch
import torch.nn.functional as F
from timm.layers.drop import DropPath
from torch import Tensor, nn

from ...norms import Norm
from ...norms.contract import Grid
from ..attend import attend
from ..layers import Mlp, make_norm
from .upsample import TokenMap

CACHED = 2**17  # numbers in the hidden layer of `RelationReuse` that are worked on at a time


class FeatureReuse(nn.Module):
    """A few channels made from the tokens of the exit before. (b, n, c) -> (b, m, width); the class token's are 0."""

    def __init__(self, dim: int, hidden: int, width: int, eps: float) -> None:
        super().__init__()
        self.norm = make_norm("ln", dim, 1, {"eps": eps})
        self.mlp = Mlp(dim, hidden, out=width)

    def forward(self, features: Tensor, upsample: TokenMap) -> Tensor:
        assert upsample.patches is not None
        return upsample.patches.rows(self.mlp(self.norm(features)))


class RelationReuse(nn.Module):
    """Attention logits of all blocks of the exit before, mixed pair by pair: an additive part of this exit's logits.

    (b, l * h, n, n) -> (l, b, h, n, n), still on the earlier exit's tokens: up-sampling comes after, since it does not commute
    with the GELU. The two layers are 1x1 convolutions over a pair's l * h logits.
    """

    def __init__(self, depth: int, heads: int) -> None:
        super().__init__()
        self.depth, self.heads = depth, heads
        channels = depth * heads
        self.expand = nn.Conv2d(channels, 3 * channels, 1)
        self.reduce = nn.Conv2d(3 * channels, channels, 1)

    def forward(self, relations: Tensor) -> Tensor:
        mixed = [
            torch.cat([self.mix(queries) for queries in _pieces(samples, 2)], 2).unflatten(1, (self.depth, self.heads))
            for samples in _pieces(relations, 0)
        ]
        return torch.cat([samples.transpose(0, 1) for samples in mixed], 1)

    def mix(self, relations: Tensor) -> Tensor:
        """(b, l * h, some of n, n) -> the same shape."""
        hidden = F.gelu(_on_channels(self.expand, relations.flatten(2)))
        return _on_channels(self.reduce, hidden).unflatten(2, relations.shape[2:])


def _on_channels(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """A 1x1 convolution as a product: (b, c, anything) -> (b, out, anything)."""
    assert layer.bias is not None
    return torch.baddbmm(layer.bias[:, None], layer.weight.flatten(1).expand(x.shape[0], -1, -1), x)


def _pieces(relations: Tensor, axis: int) -> tuple[Tensor, ...]:
    """Pieces along an axis, so small that the hidden layer of one fits into a core's cache."""
    if relations.device.type != "cpu" or torch.compiler.is_compiling():
        return (relations,)
    hidden = 3 * relations.numel() // max(relations.shape[axis], 1)
    return relations.split(max(CACHED // max(hidden, 1), 1), axis)


class ReuseAttention(nn.Module):
    """Multi-head self-attention with a bias on its logits, which can be returned. (b, m, c) -> (b, m, c)."""

    def __init__(self, dim: int, heads: int, *, qkv_bias: bool = False) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"Attention: {dim} channels cannot be split into {heads} heads")
        self.heads = self.num_heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, bias: Tensor | None = None, keep: bool = False) -> tuple[Tensor, Tensor | None]:
        """`bias` (b, h, m, m). With `keep` also the logits (b, h, m, m), bias included; without, they are never formed."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each (b, h, m, d)
        bias = bias if bias is None else bias.to(q.dtype)
        logits = None
        if keep:
            logits = (q * self.scale) @ k.transpose(-1, -2)
            logits = logits if bias is None else logits + bias
            y = logits.softmax(-1) @ v
        else:
            y = attend(q, k, v, mask=bias, scale=self.scale)
        return self.proj(y.transpose(1, 2).flatten(2)), logits


class ReuseBlock(nn.Module):
    """Pre-norm residual block. Reused features stand beside the tokens at the MLP's entrance; only tokens go on.

    `join_heads`: the tokens' channels and the reused ones are joined head by head, [x^1, f^1, x^2, f^2, ...], so that a norm
    with heads (DTN) keeps a token's channel with its head and shares the reused channels out evenly. With 1 they are joined
    as [x, f], as released, which makes no difference to a norm without heads.
    """

    def __init__(
        self,
        norm1: Norm,
        attn: ReuseAttention,
        norm2: Norm,
        mlp: Mlp,
        feature_reuse: FeatureReuse | None,
        *,
        join_heads: int = 1,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1, self.attn = norm1, attn
        self.norm2, self.mlp = norm2, mlp
        self.feature_reuse, self.join_heads = feature_reuse, join_heads
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(
        self, x: Tensor, grid: Grid, upsample: TokenMap | None, features: Tensor | None, relation: Tensor | None, keep: bool
    ) -> tuple[Tensor, Tensor | None]:
        """x (b, m, c), features (b, n, c), relation (b, h, n, n) -> x, and its attention logits (b, h, m, m) with `keep`."""
        bias = None
        if relation is not None:
            assert upsample is not None
            bias = upsample.pairs(relation)  # only now: a block's bias is used while it is in cache
        y, logits = self.attn(self.norm1(x, grid), bias, keep)
        x = x + self.drop_path(y)
        h = x
        if self.feature_reuse is not None:
            assert upsample is not None and features is not None
            parts = [part.unflatten(-1, (self.join_heads, -1)) for part in (x, self.feature_reuse(features, upsample))]
            h = torch.cat(parts, -1).flatten(-2)
        return x + self.drop_path(self.mlp(self.norm2(h, grid))), logits
