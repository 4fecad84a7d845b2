"""Banded 1-D kernels on long sequences: blocked Toeplitz products with exact border rows.

Away from the borders every row of P is the same 2 r + 1 numbers, so tiles of S targets against S + 2 r sources share one
(h, S, S + 2 r) matrix. The first r rows and the last r rows of each sample's real tokens have softmaxes of their own; they
are computed again, exactly, from the 2 r sources within their reach.
"""

import torch
from torch import Tensor

from .kernels import LEAST_MASS, MASKED_CUT, kernel_cut, offset_kernel

_TILE = 64


def band_moments(x: Tensor, position: Tensor, radius: int, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """P x and P x^2 for centred tokens x (b, t, c), and where they are defined (None: everywhere)."""
    b, t, c = x.shape
    h = position.shape[0]
    split = torch.stack([x, x.square()]).reshape(2, b, t, h, c // h)  # (s, b, t, h, d)
    cut = kernel_cut(x.dtype) if mask is None else MASKED_CUT
    out = _toeplitz(split, position, radius, cut)
    seen = None
    if mask is not None:
        valid = mask.to(x.dtype)[None, :, :, None, None].expand(1, b, t, h, 1)
        mass = _toeplitz(valid, position, radius, cut)
        seen = mass[0] > LEAST_MASS
        out = out / torch.where(seen, mass, 1.0)

    # Border rows. Without a mask, and for padding on the right, these are all rows whose window is cut short;
    # a row beside a hole in the mask keeps the ratio P(m x) / P(m).
    head = torch.zeros(b, dtype=torch.long, device=x.device)
    at = torch.arange(1, t + 1, device=x.device)
    length = head + t if mask is None else torch.where(mask, at, 0).amax(1)
    tail = (length - 2 * radius).clamp(0, t - 2 * radius)
    for start, first_row in ((head, 0), (tail, radius)):
        keys = start[:, None] + torch.arange(2 * radius, device=x.device)  # (b, 2r)
        rows = keys[:, first_row : first_row + radius]
        exact = _border(split, position, radius, keys, first_row, mask)
        index = rows[None, :, :, None, None].expand_as(exact)
        out = out.scatter(2, index, exact)
        if seen is not None:
            seen = seen.scatter(1, rows[:, :, None, None].expand(b, radius, h, 1), True)
    mean, second = out.flatten(-2)
    return mean, second, seen.expand(b, t, h, c // h).flatten(-2) if seen is not None else None


def _toeplitz(x: Tensor, position: Tensor, radius: int, cut: float) -> Tensor:
    """(s, b, t, h, d) filtered by the interior row of each head, zeros beyond the ends."""
    s, b, t, h, d = x.shape
    offset = torch.arange(-radius, radius + 1, device=x.device, dtype=torch.float64)[None]
    row = offset_kernel(position[:, 0], position[:, 1], offset, offset > -torch.inf, cut)[:, 0].to(x.dtype)
    width = _TILE + 2 * radius
    tiles = -(-t // _TILE)
    # kernel[i, j] = row[j - i]: each row is the one above, moved by one.
    moved = torch.arange(width, device=x.device)[None] - torch.arange(_TILE, device=x.device)[:, None]
    inside = (moved >= 0) & (moved <= 2 * radius)
    kernel = torch.where(inside, row[:, moved.clamp(0, 2 * radius)], 0.0)  # (h, S, S + 2r)
    padded = torch.nn.functional.pad(x, (0, 0, 0, 0, radius, radius + tiles * _TILE - t))
    windows = padded.unfold(2, width, _TILE)  # (s, b, tiles, h, d, S + 2r), a view
    out = torch.einsum("hij,sbthdj->sbtihd", kernel, windows)
    return out.reshape(s, b, tiles * _TILE, h, d)[:, :, :t]


def _border(x: Tensor, position: Tensor, radius: int, keys: Tensor, first_row: int, mask: Tensor | None) -> Tensor:
    """Exact rows (s, b, r, h, d), from `first_row` of a slice: softmax over its sources, at `keys` (b, 2r), that are real and
    within the radius."""
    at = torch.arange(2 * radius, device=x.device, dtype=torch.float64)
    offset = at[None, :] - at[first_row : first_row + radius, None]  # (r, 2r), the same for every start of the slice
    allowed = (offset.abs() <= radius).expand(keys.shape[0], *offset.shape)
    if mask is not None:
        allowed = allowed & mask.gather(1, keys)[:, None, :]
    kernel = offset_kernel(position[:, 0], position[:, 1], offset, allowed, kernel_cut(x.dtype)).to(x.dtype)  # (b, h, r, 2r)
    sources = x.gather(2, keys[None, :, :, None, None].expand(x.shape[0], -1, -1, *x.shape[3:]))
    return torch.einsum("bhij,sbjhd->sbihd", kernel, sources)
