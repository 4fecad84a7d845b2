"""DTN written out plainly in float64: the whole T x T matrix P, one line per equation of the paper.

It shares no code with `dynavit` and was written from the equations before the layer was read. Nothing here is fast,
and nothing is clever: autograd differentiates it.

Shapes: x (B, T, C); position (H, 3) = [d², dx, dy], or (H, 2) = [d², d] in one dimension; P (B or 1, H, T, T).
"""

import math

import torch
from torch import Tensor

EPS = 1e-5


# ------------------------------------------------------------------------------------------------ the matrix P


def offsets(grid: tuple[int, ...]) -> list[Tensor]:
    """j - i for every pair of tokens, one (T, T) table per axis: [dx, dy] on a (rows, columns) grid, [d] in 1-D."""
    index = torch.arange(math.prod(grid))
    axes = [index] if len(grid) == 1 else [index % grid[1], index // grid[1]]  # column, row
    return [(axis[None, :] - axis[:, None]).double() for axis in axes]


def scores(position: Tensor, grid: tuple[int, ...]) -> Tensor:
    """s_ij = a0 |j - i|² + a · (j - i), (H, T, T)."""
    steps = offsets(grid)
    assert position.shape[1] == 1 + len(steps)
    squared = sum(step**2 for step in steps)
    linear = sum(position[:, 1 + k, None, None] * step for k, step in enumerate(steps))
    return position[:, 0, None, None] * squared + linear


def within(grid: tuple[int, ...], radius: int) -> Tensor:
    """Pairs of tokens at most `radius` apart along every axis, (T, T)."""
    return torch.stack([step.abs() <= radius for step in offsets(grid)]).all(0)


def softmax_rows(score: Tensor, keep: Tensor) -> Tensor:
    """exp(score) over the kept j, rows summing to 1. Rows that keep nothing have no value: they are NaN."""
    return torch.softmax(score.masked_fill(~keep, -torch.inf), dim=-1)


def positional(position: Tensor, grid: tuple[int, ...], mask: Tensor | None = None, radius: int | None = None) -> Tensor:
    """P_ij = m_j exp s_ij / sum_k m_k exp s_ik (Eqn 6), over |j - i| <= radius if one is given."""
    tokens = math.prod(grid)
    keep = torch.ones(1, 1, tokens, tokens, dtype=torch.bool)
    if radius is not None:
        keep = keep & within(grid, radius)
    if mask is not None:
        keep = keep & mask[:, None, None, :]
    return softmax_rows(scores(position, grid)[None], keep)


def box(heads: int, grid: tuple[int, ...], radius: int | None, mask: Tensor | None = None) -> Tensor:
    """Equal weights over the window |dx| <= radius, |dy| <= radius; over all tokens if there is no radius."""
    width = 2 if len(grid) == 1 else 3
    return positional(torch.zeros(heads, width, dtype=torch.float64), grid, mask, radius)


# ------------------------------------------------------------------------------------------------ the layer


def average(P: Tensor, x: Tensor) -> Tensor:
    """P^h x^h for every head, (B, T, C)."""
    heads = P.shape[1]
    by_head = x.unflatten(-1, (heads, -1))
    return torch.einsum("bhij,bjhd->bihd", P.expand(len(x), -1, -1, -1), by_head).flatten(2)


def normalise(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """y = γ (x − μ) / sqrt(σ² + ε) + β (Eqns 1 and 4)."""
    y = (x - mean) / (var + eps).sqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = EPS) -> Tensor:
    """Intra-token statistics over all channels, biased (Eqn 2)."""
    mean = x.mean(-1, keepdim=True)
    return normalise(x, mean, (x - mean).square().mean(-1, keepdim=True), weight, bias, eps)


def mixed(x: Tensor, P: Tensor, lam_mean: Tensor, lam_var: Tensor, source: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Eqn 5: λ intra-token + (1 − λ) inter-token mean and variance. Rows of P sum to 1, so any shift of x is exact."""
    width = x.shape[-1] // P.shape[1]
    lam_mean, lam_var = (lam.repeat_interleave(width) for lam in (lam_mean, lam_var))
    mu = x.mean(-1, keepdim=True)
    var = (x - mu).square().mean(-1, keepdim=True)
    shift = x.detach().mean((0, 1))
    centred = x - shift
    inter_mu = average(P, centred)
    inter_var = average(P, centred**2) - inter_mu**2
    return lam_mean * mu + (1 - lam_mean) * (inter_mu + shift), lam_var * var + (1 - lam_var) * inter_var


def dtn(
    x: Tensor,
    P: Tensor,
    lam_mean: Tensor,
    lam_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    prefix: int = 0,
    mask: Tensor | None = None,
    eps: float = EPS,
) -> Tensor:
    """The paper's layer (Eqns 1-7). Prefix tokens get LayerNorm and stand outside P; padding gets 0.

    `mask` covers all tokens, prefix included; P covers the tokens after the prefix and already knows the mask.
    """
    if mask is not None:
        x = torch.where(mask[..., None], x, 0.0)
        # A padded row of P that keeps nothing has no value; its output is 0 whatever it is.
        P = torch.where(mask[:, None, prefix:, None], P, 0.0)
    head, body = x[:, :prefix], x[:, prefix:]
    y = normalise(body, *mixed(body, P, lam_mean, lam_var), weight, bias, eps)
    y = torch.cat([layer_norm(head, weight, bias, eps), y], dim=1)
    return y if mask is None else torch.where(mask[..., None], y, 0.0)


# ---------------------------------------------------------------------------------------- what the authors released


def pool_cells(x: Tensor, grid: tuple[int, int], k: int) -> Tensor:
    """The mean of each k x k cell, cells row-major: (B, T, C) -> (B, T / k², C)."""
    rows, columns = grid
    cells = x.reshape(len(x), rows // k, k, columns // k, k, x.shape[-1])
    return cells.mean((2, 4)).flatten(1, 2)


def spread_cells(x: Tensor, grid: tuple[int, int], k: int) -> Tensor:
    """Each cell's value for each of its k x k tokens: the inverse shape of `pool_cells`."""
    rows, columns = grid
    cells = x.reshape(len(x), rows // k, columns // k, x.shape[-1])
    return cells.repeat_interleave(k, 1).repeat_interleave(k, 2).flatten(1, 2)


def head_rms(x: Tensor, heads: int, eps: float = EPS) -> Tensor:
    """u = x_h / sqrt(mean over the head's channels of x_h² + ε)."""
    by_head = x.unflatten(-1, (heads, -1))
    return (by_head / (by_head.square().mean(-1, keepdim=True) + eps).sqrt()).flatten(-2)


def dtn_released(
    x: Tensor,
    P: Tensor,
    lam_mean: Tensor,
    lam_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    grid: tuple[int, int],
    pool: int = 1,
    eps: float = EPS,
) -> Tensor:
    """Section 1.1 of the specification: on u = RMS per head, C − 1 in the variance over channels, pooling (1.4).

    P is the matrix of the pooled grid.
    """
    heads, channels = P.shape[1], x.shape[-1]
    u = head_rms(x, heads, eps)
    mu = u.mean(-1, keepdim=True)
    s = (u - mu).square().sum(-1, keepdim=True) / (channels - 1)
    g = pool_cells(u, grid, pool)
    m = average(P, g)
    v = average(P, g**2) - m**2
    m, v = spread_cells(m, grid, pool), spread_cells(v, grid, pool)
    lam_mean, lam_var = (lam.repeat_interleave(channels // heads) for lam in (lam_mean, lam_var))
    mean = lam_mean * mu + (1 - lam_mean) * m
    var = lam_var * s + (1 - lam_var) * v
    return normalise(u, mean, var, weight, bias, eps)
