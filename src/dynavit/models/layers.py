"""Parts that several models share.

Axes:  b samples, t tokens, c channels, h heads, d = c / h channels of a head, n keys.

Attention, MLP and norms are all called as `part(x, grid=..., mask=...)`, so that a block can hold any of them:
`grid` is the (rows, cols) of the tokens (None if no norm needs it), `mask` (b, t) is True for real tokens.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.drop import DropPath
from torch import Tensor, nn

from ..common.registry import nearest_match_error
from ..norms import LayerNorm, Norm
from ..norms.contract import Grid
from ..norms.factory import norm_class_of
from ..norms.seat import Seat, seat_norm
from .attend import attend

NORM_SITES = {"both": ("attn", "mlp"), "attn": ("attn",), "mlp": ("mlp",)}  # which norms of a block carry a model's norm


class Attention(nn.Module):
    """Multi-head self-attention. (b, t, c) -> (b, t, c). Unless `hides_padding` is False, nothing attends to masked tokens."""

    hides_padding = True

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        qkv_bias: bool = False,
        proj_bias: bool = True,
        qk_scale: float | None = None,  # None: 1 / sqrt(d)
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"Attention: {dim} channels cannot be split into {heads} heads")
        self.heads, self.num_heads, self.scale, self.attn_drop = heads, heads, qk_scale, attn_drop
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim, bias=proj_bias)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each (b, h, t, d)
        keys = mask[:, None, None, :] if mask is not None and self.hides_padding else None  # (b, 1, 1, n)
        drop = self.attn_drop if self.training else 0.0
        y = attend(q, k, v, mask=keys, drop=drop, scale=self.scale)
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))


class Mlp(nn.Module):
    """Two linears with a GELU between them, each token by itself. (b, t, c) -> (b, t, out), by default c.

    `gelu` is "tanh" for the approximation that models from JAX have.
    """

    def __init__(self, dim: int, hidden: int, *, out: int | None = None, drop: float = 0.0, gelu: str = "none") -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU(gelu)
        self.fc2 = nn.Linear(hidden, dim if out is None else out)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class Block(nn.Module):
    """Pre-norm residual block of parts made elsewhere. (b, t, c) -> (b, t, c)."""

    def __init__(self, norm1: Norm, attn: nn.Module, norm2: Norm, mlp: nn.Module, *, drop_path: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.attn = norm1, attn
        self.norm2, self.mlp = norm2, mlp
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x, grid, mask), grid, mask))
        return x + self.drop_path(self.mlp(self.norm2(x, grid, mask), grid, mask))


def make_norm(
    name: str, dim: int, heads: int, options: dict[str, Any] | None = None, *, num_prefix_tokens: int = 0, ndim: int = 2
) -> Norm:
    """A norm for one place of a model. `options` are its own, and go before what the place says."""
    return seat_norm(name, Seat(dim, heads, num_prefix_tokens, ndim), options)


def norm_everywhere(model: nn.Module, name: str, options: dict[str, Any] | None = None) -> None:
    """Put this norm in place of every LayerNorm, one in all places of a shared one. In place."""
    places = [(path, old) for path, old in model.named_modules(remove_duplicate=False) if isinstance(old, LayerNorm)]
    norms = {old: make_norm(name, old.dim, old.heads, options) for old in dict.fromkeys(old for _, old in places)}
    for path, old in places:
        model.set_submodule(path, norms[old])


def check_norm(name: str, sites: str = "both") -> None:
    """An unknown norm or site is an error even where no block carries the norm."""
    norm_class_of(name)
    if sites not in NORM_SITES:
        raise nearest_match_error("norm site", sites, NORM_SITES)


def init_linears(model: nn.Module, std: float = 0.02) -> None:
    """Initialise linears: truncated normal, zero bias. Norms have initialised themselves; convolutions keep torch's init,
    as in timm and in the release.
    """
    for child in model.children():
        if isinstance(child, Norm):
            continue
        if isinstance(child, nn.Linear):
            nn.init.trunc_normal_(child.weight, std=std)
            if child.bias is not None:
                nn.init.zeros_(child.bias)
        init_linears(child, std)


def overwrite_position_as_released(model: nn.Module) -> None:
    """Repeat a mistake of the release: its models initialise all linears last, also the one that holds DTN's `position`."""
    for module in model.modules():
        position = getattr(module, "position", None)
        if isinstance(module, Norm) and isinstance(position, nn.Parameter):
            nn.init.trunc_normal_(position, std=0.02)


def drop_path_rates(rate: float, depth: int) -> list[float]:
    """Stochastic depth of each block: from 0 in the first to `rate` in the last."""
    return [rate * i / max(depth - 1, 1) for i in range(depth)]


def resize_positions(positions: Tensor, old: tuple[int, int], new: tuple[int, int], prefix: int = 0) -> Tensor:
    """Positional embeddings (1, prefix + rows * cols, c) of an `old` grid, bicubically on a `new` one."""
    if old == new:
        return positions
    kept, patches = positions[:, :prefix], positions[:, prefix:]
    image = patches.unflatten(1, old).permute(0, 3, 1, 2).float()  # (1, c, rows, cols); half precision has no bicubic
    image = F.interpolate(image, new, mode="bicubic", antialias=True)
    return torch.cat([kept, image.flatten(2).transpose(1, 2).to(positions.dtype)], 1)


def patch_grid(name: str, x: Tensor, patch: tuple[int, int], in_chans: int) -> tuple[int, int]:
    """(rows, cols) of patches in an image batch (b, in_chans, height, width), or an error that says what would fit."""
    if x.dim() != 4 or x.shape[1] != in_chans:
        raise ValueError(f"{name}: got an input of shape {tuple(x.shape)}; it takes (batch, {in_chans}, height, width)")
    return divide_into_patches(name, (x.shape[2], x.shape[3]), patch)


def divide_into_patches(name: str, image: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    if min(image) < 1 or any(side % p for side, p in zip(image, patch, strict=True)):
        fits = tuple(max(p, math.floor(side / p + 0.5) * p) for side, p in zip(image, patch, strict=True))
        raise ValueError(
            f"{name}: an image of {image[0]}x{image[1]} cannot be cut into patches of {patch[0]}x{patch[1]}; "
            f"the nearest size that can is {fits[0]}x{fits[1]}"
        )
    return image[0] // patch[0], image[1] // patch[1]


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
