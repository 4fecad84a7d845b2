"""Tokens-to-Token ViT. Yuan et al., ICCV 2021, arXiv 2101.11986.

Axes:  b samples, t tokens, c channels, s source tokens, m random features.

`TokensToToken` turns an image into few tokens that overlap; `T2TVisionTransformer` is a plain pre-norm ViT behind it.
Parameters are named as in the release.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..norms.contract import statistics_dtype
from .attend import attend
from .conv_tokens import Split, grids_of
from .layers import Mlp, check_norm, make_norm, pair, resize_positions
from .registry import register_model
from .trunk import Trunk

SPLITS: tuple[Split, ...] = ((7, 4, 2), (3, 2, 1), (3, 2, 1))  # 224 pixels -> 56, 28, 14
RUN = 16  # channels from which on copying all of a pixel at once pays


def linear_attention(q: Tensor, k: Tensor, v: Tensor, features: Tensor, eps: float = 1e-8) -> Tensor:
    r"""Attention whose kernel is estimated by positive random features (Performer, arXiv 2009.14794); linear in tokens.

    $$ y_t = \frac{\sum_s v_s \phi(k_s)^\top \phi(q_t)}{\sum_s \phi(k_s)^\top \phi(q_t) + \epsilon}, \qquad
       \phi(z) = \exp(R z - |z|^2 / 2) / \sqrt m $$

    q, k (b, t, d), v (b, t, c), R = `features` (m, d) -> (b, t, c). The exponentials span dozens of orders of magnitude:
    written as above they overflow in float16. Here each feature of the keys is divided by its largest value, and each query
    by the largest of its terms; numerator and denominator share these factors, and eps is divided by them too, so y is the
    same. At least float32, also under autocast.
    """
    dtype = statistics_dtype(v.dtype)
    with _without_autocast(v.device.type):
        q, k, v, features = (part.to(dtype) for part in (q, k, v, features))
        log_q, log_k = (z @ features.T - z.square().sum(-1, keepdim=True) / 2 for z in (q, k))  # (b, t, m), but for sqrt(m)
        least = torch.finfo(dtype).min
        # y does not depend on the two scales, so neither do gradients.
        key_scale = log_k.detach().amax(1, keepdim=True).clamp(min=least)  # (b, 1, m)
        phi_k = (log_k - key_scale).exp()
        log_q = log_q + key_scale
        query_scale = log_q.detach().amax(-1, keepdim=True).clamp(min=least)  # (b, t, 1)
        phi_q = (log_q - query_scale).exp()
        # Where all terms are below eps by e^80, y is 0 to float precision anyway; larger exponents would be infinite.
        rest = eps * features.shape[0] * (-query_scale).clamp(max=0.9 * math.log(torch.finfo(dtype).max)).exp()
        return phi_q @ (phi_k.transpose(1, 2) @ v) / (phi_q @ phi_k.sum(1)[..., None] + rest)


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


class TokenPerformer(nn.Module):
    """One head of linear attention that changes the width, and an MLP. (b, t, dim) -> (b, t, width)."""

    w: Tensor

    def __init__(self, dim: int, width: int = 64, *, feature_ratio: float = 0.5, drop: float = 0.1) -> None:
        super().__init__()
        self.norm1 = make_norm("ln", dim, 1)
        self.kqv = nn.Linear(dim, 3 * width)
        # The random features R (m, width): orthogonal rows of length sqrt(m). Not trained, but part of a checkpoint.
        self.register_buffer("w", torch.empty(int(width * feature_ratio), width))
        self.proj = nn.Linear(width, width)
        self.norm2 = make_norm("ln", width, 1)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.Dropout(drop))
        self.drop = nn.Dropout(drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.w, gain=math.sqrt(self.w.shape[0]))

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = self.kqv(self.norm1(x)).chunk(3, -1)
        y = linear_attention(q, k, v, self.w).to(v.dtype)
        x = v + self.drop(self.proj(y))  # the skip is v: x has another width
        return x + self.mlp(self.norm2(x))


class WidthAttention(nn.Module):
    """One head of softmax attention that changes the width, its values added. (b, t, dim) -> (b, t, width)."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.scale = dim**-0.5  # of the input's width, not the head's, as released
        self.qkv = nn.Linear(dim, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)  # (b, 1, t, width)
        y = attend(q, k, v, scale=self.scale)
        return v[:, 0] + self.proj(y[:, 0])


class TokenTransformer(nn.Module):
    """One softmax attention layer that changes the width. (b, t, dim) -> (b, t, width)."""

    def __init__(self, dim: int, width: int = 64) -> None:
        super().__init__()
        self.norm1 = make_norm("ln", dim, 1)
        self.attn = WidthAttention(dim, width)
        self.norm2 = make_norm("ln", width, 1)
        self.mlp = Mlp(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def soft_split(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Overlapping patches, zero-padded: (b, c, height, width) -> (b, t, c * kernel * kernel), features (channel, row, column).

    As F.unfold, but with tokens as rows, which saves a slow transposition of its result. Many channels are first picked up
    pixel by pixel, all channels of one at once, and then turned token by token while it is in cache: three times as fast.
    """
    if x.shape[1] < RUN:
        patches = F.pad(x, (padding,) * 4).unfold(2, kernel, stride).unfold(3, kernel, stride)
        return patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, *(padding,) * 4))  # (b, height, width, c)
    patches = pixels.unfold(1, kernel, stride).unfold(2, kernel, stride)  # (b, rows, cols, c, kernel, kernel)
    by_pixel = patches.permute(0, 1, 2, 4, 5, 3).contiguous().flatten(3, 4)  # (b, rows, cols, kernel * kernel, c)
    return by_pixel.transpose(3, 4).flatten(3).flatten(1, 2)


class TokensToToken(nn.Module):
    """An image to overlapping tokens: soft split, attention, soft split, attention, soft split, projection.

    (b, in_chans, height, width) -> tokens (b, t, dim) and their grid. A soft split unfolds overlapping patches, zero-padded.

    Args:
        kind: attention layer between the splits, "performer" or "transformer".
        splits: (kernel, stride, padding) of each split. Between them lies one attention layer, so there are as many layers as
            splits, less one.
        width: channels between the splits.
        drop: dropout of the performers; the release has 0.1 in all models.
    """

    def __init__(
        self,
        dim: int,
        *,
        kind: Literal["performer", "transformer"] = "performer",
        splits: tuple[Split, ...] = SPLITS,
        in_chans: int = 3,
        width: int = 64,
        drop: float = 0.1,
    ) -> None:
        super().__init__()
        if kind not in ("performer", "transformer"):
            raise ValueError(f"TokensToToken: kind is 'performer' or 'transformer'; got {kind!r}")
        self.splits, self.in_chans = tuple(splits), in_chans
        channels = in_chans
        for at, (kernel, _, _) in enumerate(splits[:-1], 1):
            seen = channels * kernel**2
            layer = TokenPerformer(seen, width, drop=drop) if kind == "performer" else TokenTransformer(seen, width)
            setattr(self, f"attention{at}", layer)
            channels = width
        self.project = nn.Linear(channels * splits[-1][0] ** 2, dim)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        if x.dim() != 4 or x.shape[1] != self.in_chans:
            raise ValueError(
                f"TokensToToken: got an input of shape {tuple(x.shape)}; it takes (batch, {self.in_chans}, height, width)"
            )
        grids = self.grids((x.shape[2], x.shape[3]))
        for at, (kernel, stride, padding) in enumerate(self.splits, 1):
            tokens = soft_split(x, kernel, stride, padding)
            if at == len(self.splits):
                return self.project(tokens), grids[-1]
            x = self.get_submodule(f"attention{at}")(tokens).transpose(1, 2).unflatten(2, grids[at - 1])
        raise AssertionError("there is a last split")

    def grids(self, image: tuple[int, int]) -> list[tuple[int, int]]:
        """(rows, cols) after each split of an image (height, width)."""
        return grids_of("TokensToToken", "soft splits", self.splits, image)


def sinusoid(length: int, dim: int) -> Tensor:
    """Positions (1, length, dim): sin(p / 10000^(2 floor(j/2) / dim)) for even j, cos for odd j, at place p of the sequence."""
    place = torch.arange(length, dtype=torch.float64, device="cpu")[:, None]
    j = torch.arange(dim, device="cpu")
    angle = place / 10000.0 ** (2 * (j // 2).double() / dim)
    return torch.where(j % 2 == 0, angle.sin(), angle.cos())[None].float()


class T2TVisionTransformer(Trunk):
    """A vision transformer on overlapping tokens. (b, in_chans, height, width) -> (b, num_classes).

    Images of any size; fixed sinusoidal positions, interpolated where the grid is not that of `img_size`. The class token is
    there from the start.

    Args:
        tokens: "performer" or "transformer" layers in the tokenizer.
        splits: the tokenizer's soft splits, see `TokensToToken`.
        qk_scale: factor of attention logits; None: 1 / sqrt(head's channels). Weights published by T2T-ViT were trained with
            1 / sqrt(embed_dim).
        norm, norm_options: a name of `list_norms` and its options, for the blocks; the tokenizer and the end have LayerNorm.
        norm_blocks: how many blocks, from the first, have it; None: all.
        norm_sites: which norms of a block: before attention ("attn"), before the MLP ("mlp"), or "both".
        released_init: start DTN's `position` from a truncated normal, as models of the DTN release do by mistake.
        token_drop_rate: dropout inside the performers.
        drop_rate: dropout before the classifier.
        pos_drop_rate, proj_drop_rate, attn_drop_rate: dropout after positions, after projections and in the MLP, and on
            attention weights.
        drop_path_rate: stochastic depth of the last block; it grows linearly with depth.
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dim: int = 384,
        depth: int = 14,
        heads: int = 6,
        mlp_ratio: float = 3.0,
        tokens: Literal["performer", "transformer"] = "performer",
        token_width: int = 64,
        splits: tuple[Split, ...] = SPLITS,
        qkv_bias: bool = False,
        qk_scale: float | None = None,
        norm: str = "ln",
        norm_options: dict[str, Any] | None = None,
        norm_blocks: int | None = None,
        norm_sites: Literal["both", "attn", "mlp"] = "both",
        released_init: bool = False,
        token_drop_rate: float = 0.1,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        norm_blocks = depth if norm_blocks is None else norm_blocks
        if not 0 <= norm_blocks <= depth:
            raise ValueError(f"T2TVisionTransformer: norm_blocks counts blocks from the first, 0 to {depth}; got {norm_blocks}")
        check_norm(norm, norm_sites)
        self.place_token("start", norm_blocks, depth)

        self.tokens_to_token = TokensToToken(
            embed_dim, kind=tokens, splits=splits, in_chans=in_chans, width=token_width, drop=token_drop_rate
        )
        self.grid_size = self.tokens_to_token.grids(pair(img_size))[-1]
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.register_buffer("pos_embed", sinusoid(1 + math.prod(self.grid_size), embed_dim).to(self.cls_token))
        self.pos_drop = nn.Dropout(pos_drop_rate)

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
            qk_scale=qk_scale,
            attn_drop=attn_drop_rate,
            proj_drop=proj_drop_rate,
        )
        self.finish(
            pair(img_size),
            in_chans,
            num_classes,
            embed_dim,
            heads,
            drop_rate=drop_rate,
            reduction=math.prod(stride for _, stride, _ in splits),
            # No convolution comes first, but a linear on unfolded pixels.
            first_conv="tokens_to_token.attention1." + ("kqv" if tokens == "performer" else "attn.qkv"),
            crop_pct=0.9,
            released_init=released_init,
        )

    def embed(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Class token and overlapping tokens with their positions."""
        x, grid = self.tokens_to_token(image)
        x = self.with_token(x) + resize_positions(self.pos_embed, self.grid_size, grid, prefix=1)
        return self.pos_drop(x), grid


def _sizes(tokens: str, embed_dim: int, depth: int, heads: int, mlp_ratio: float) -> dict[str, Any]:
    return {"tokens": tokens, "embed_dim": embed_dim, "depth": depth, "heads": heads, "mlp_ratio": mlp_ratio}


T2T_SIZES = {
    "t2t_vit_7": _sizes("performer", 256, 7, 4, 2.0),
    "t2t_vit_10": _sizes("performer", 256, 10, 4, 2.0),
    "t2t_vit_12": _sizes("performer", 256, 12, 4, 2.0),
    "t2t_vit_14": _sizes("performer", 384, 14, 6, 3.0),
    "t2t_vit_19": _sizes("performer", 448, 19, 7, 3.0),
    "t2t_vit_24": _sizes("performer", 512, 24, 8, 3.0),
    "t2t_vit_t_14": _sizes("transformer", 384, 14, 6, 3.0),
    "t2t_vit_t_19": _sizes("transformer", 448, 19, 7, 3.0),
    "t2t_vit_t_24": _sizes("transformer", 512, 24, 8, 3.0),
}


@register_model
def t2t_vit_7(**kwargs: Any) -> T2TVisionTransformer:
    """T2T-ViT-7, performer tokenizer."""
    return T2TVisionTransformer(**{**T2T_SIZES["t2t_vit_7"], **kwargs})


@register_model
def t2t_vit_10(**kwargs: Any) -> T2TVisionTransformer:
    """T2T-ViT-10, performer tokenizer."""
    return T2TVisionTransformer(**{**T2T_SIZES["t2t_vit_10"], **kwargs})


@register_model
def t2t_vit_12(**kwargs: Any) -> T2TVisionTransformer:
    """T2T-ViT-12, performer tokenizer."""
    return T2TVisionTransformer(**{**T2T_SIZES["t2t_vit_12"], **kwargs})


@register_model
def t2t_vit_14(**kwargs: Any) -> T2TVisionTransformer:
    """T2T-ViT-14, performer tokenizer."""
    return T2TVisionTransformer(**{**T2T_SIZES["t2t_vit_14"], **kwargs})


@register_model
def t2t_vit_19(**kwargs: Any) -> T2TVisionTransformer:
    """T2T-ViT-19, performer tokenizer."""
    return T2TVisionTransformer(**{**T2T_SIZES["t2t_vit_19"], **kwargs})


@register_model
def t2t_vit_24(**kwargs: Any) -> T2TVisionTransformer:
    """T2T-ViT-24, performer tokenizer."""
    return T2TVisionTransformer(**{**T2T_SIZES["t2t_vit_24"], **kwargs})


@register_model
def t2t_vit_t_14(**kwargs: Any) -> T2TVisionTransformer:
    """T2T-ViT_t-14, transformer tokenizer."""
    return T2TVisionTransformer(**{**T2T_SIZES["t2t_vit_t_14"], **kwargs})


@register_model
def t2t_vit_t_19(**kwargs: Any) -> T2TVisionTransformer:
    """T2T-ViT_t-19, transformer tokenizer."""
    return T2TVisionTransformer(**{**T2T_SIZES["t2t_vit_t_19"], **kwargs})


@register_model
def t2t_vit_t_24(**kwargs: Any) -> T2TVisionTransformer:
    """T2T-ViT_t-24, transformer tokenizer."""
    return T2TVisionTransformer(**{**T2T_SIZES["t2t_vit_t_24"], **kwargs})


@register_model
def test_t2t(**kwargs: Any) -> T2TVisionTransformer:
    """A tiny T2T-ViT for tests: 32-pixel images become a 4x4 grid."""
    splits = ((7, 2, 3), (3, 2, 1), (3, 2, 1))
    small = {"img_size": 32, "embed_dim": 32, "depth": 2, "heads": 4, "mlp_ratio": 2.0, "token_width": 16, "num_classes": 10}
    return T2TVisionTransformer(**{**small, "splits": splits, **kwargs})
