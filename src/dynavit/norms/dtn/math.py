"""The equations of Dynamic Token Normalization in plain torch: differentiable, exportable, on any device.

`token_norm` defines the layer; the C kernel in `native/` computes the same numbers faster on CPUs.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .band import band_moments
from .kernels import LEAST_MASS, MASKED_CUT, centred, grid_kernels, kernel_cut, mix_separable, offset_kernel


class Operands(NamedTuple):
    """The tensors of one call, in the order in which every operator and the C kernel take them."""

    x: Tensor  # (b, prefix + t, c), float32 or float64
    weight: Tensor | None  # (c)
    bias: Tensor | None  # (c)
    lam_mean: Tensor  # (h)
    lam_var: Tensor  # (h)
    position: Tensor | None  # (h, 3), in 1-D (h, 2); None: P = 1/t
    extents: Tensor | None = None  # (b, 2) real rows and columns in the top-left corner; only the C kernel takes it


class Layout(NamedTuple):
    """Everything about one call that is not a tensor."""

    grid: tuple[int, ...]  # (rows, cols), or (length,)
    prefix: int = 0  # tokens in front that are outside the grid
    radius: int | None = None  # weights are zero beyond this offset
    banded: bool = False  # 1-D: run the window of `radius` as blocked Toeplitz
    pool: int = 1  # inter-token statistics of cells of pool x pool tokens
    keeps_spread: bool = True  # pooled second moments include the variance inside a cell; not so in the release
    ddof: int = 0  # divisor of the intra-token variance is c - ddof
    eps: float = 1e-5

    @property
    def macs_per_channel(self) -> int:
        """Multiply-adds of P x for one sample and channel, by the dense separable formula."""
        if len(self.grid) == 2:
            rows, cols = (-(-n // self.pool) for n in self.grid)
            return rows * cols * (rows + cols)
        reach = 2 * self.radius + 1 if self.radius is not None else self.grid[0]
        return self.grid[0] * min(reach, self.grid[0])


def token_norm(
    x: Tensor, lam_mean: Tensor, lam_var: Tensor, position: Tensor | None, layout: Layout, mask: Tensor | None = None
) -> Tensor:
    """(b, prefix + t, c) -> normalised, before the affine map. lam_* are (h,), position (h, 2 or 3), None for P = 1/t."""
    prefix, patches = x[:, : layout.prefix], x[:, layout.prefix :]
    if mask is not None:
        mask = mask[:, layout.prefix :]
    y = _normalise_patches(patches, lam_mean, lam_var, position, layout, mask)
    return torch.cat([_normalise_prefix(prefix, layout), y], 1) if layout.prefix else y


def _normalise_patches(
    x: Tensor, lam_mean: Tensor, lam_var: Tensor, position: Tensor | None, layout: Layout, mask: Tensor | None
) -> Tensor:
    inside, centre = centred(x, mask)
    # Intra-token (Eqn 2), in the centred coordinates: mean_c(x) - centre = mean_c(inside) + mean_c(offset) - offset,
    # with the offsets taken from a common reference, so that a large common mean never enters a difference.
    offset = centre - centre.mean(-1, keepdim=True)
    token = inside + offset
    mean_ln = token.mean(-1, keepdim=True)
    var_ln = (token - mean_ln).square().sum(-1, keepdim=True) / max(x.shape[-1] - layout.ddof, 1)

    mean, second, seen = position_moments(inside, position, layout, mask)
    var = (second - mean.square()).clamp_min(0)

    lam_mean, lam_var = (lam.to(x.dtype).repeat_interleave(x.shape[-1] // lam.numel(), 0) for lam in (lam_mean, lam_var))
    if seen is not None:  # rows that see no real token take intra-token statistics alone
        lam_mean, lam_var = (torch.where(seen, lam, 1.0) for lam in (lam_mean, lam_var))
    mu = lam_mean * (mean_ln - offset) + (1 - lam_mean) * mean
    sigma2 = lam_var * var_ln + (1 - lam_var) * var
    return (inside - mu) / (sigma2 + layout.eps).sqrt()


def _normalise_prefix(x: Tensor, layout: Layout) -> Tensor:
    token = x - x.mean(-1, keepdim=True).detach()
    token = token - token.mean(-1, keepdim=True)
    var = token.square().sum(-1, keepdim=True) / max(x.shape[-1] - layout.ddof, 1)
    return token / (var + layout.eps).sqrt()


def position_moments(
    x: Tensor, position: Tensor | None, layout: Layout, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """P x and P x^2 (b, t, c) of centred tokens, and where they are defined (None: everywhere)."""
    if position is None:
        return _uniform_moments(x, mask)
    if layout.pool > 1:
        return _pooled_moments(x, position, layout, mask)
    if layout.banded and layout.radius is not None:
        return band_moments(x, position, layout.radius, mask)
    both = torch.stack([x, x.square()])
    heads = position.shape[0]
    if len(layout.grid) == 1 and mask is not None:
        # Short sequences: each sample's own softmax over its real tokens, exact for every mask and every kernel.
        at = torch.arange(layout.grid[0], device=x.device, dtype=torch.float64)
        offset = at[None, :] - at[:, None]
        allowed = (offset.abs() <= (layout.radius or layout.grid[0])) & mask[:, None, :]
        kernel = offset_kernel(position[:, 0], position[:, 1], offset, allowed, kernel_cut(x.dtype)).to(x.dtype)
        split = both.unflatten(-1, (heads, x.shape[-1] // heads))
        mean, second = torch.einsum("bhij,sbjhd->sbihd", kernel, split).flatten(-2)
        return mean, second, None
    if mask is not None:
        return _weighted_moments(both, position, layout, mask)
    kernels = [kernel.to(x.dtype) for kernel in grid_kernels(position, layout.grid, layout.radius, kernel_cut(x.dtype))]
    mean, second = mix_separable(both, kernels, layout.grid)
    return mean, second, None


def _weighted_moments(both: Tensor, position: Tensor, layout: Layout, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """P(w x) / P(w) of x and x^2 (2, b, t, c), and where P(w) is large enough to divide by; w (b, t) is 0 for padding.

    Each sample's kernels give no weight to rows and columns without a real token, which the ratio does not notice. But where
    the real tokens fill a rectangle, as an image does in a padded batch, P(w) is then about 1 in every row, however far into
    the padding a head would look: the statistics are those of the image alone.
    """
    heads, channels = position.shape[0], both.shape[-1]
    on_grid = (weight > 0).unflatten(1, layout.grid)
    real = (on_grid.any(2), on_grid.any(1))  # (b, rows), (b, cols)
    kernels = [k.to(both.dtype) for k in grid_kernels(position, layout.grid, layout.radius, MASKED_CUT, real)]
    weight = weight[..., None].to(both.dtype)
    mean, second = mix_separable(both * weight, kernels, layout.grid)
    mass = mix_separable(weight.expand(*weight.shape[:2], heads), kernels, layout.grid)
    mass = mass.repeat_interleave(channels // heads, -1)
    seen = mass > LEAST_MASS
    mass = torch.where(seen, mass, 1.0)
    return mean / mass, second / mass, seen


def _uniform_moments(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, None]:
    """P = 1/t: every token sees the mean over the (real) tokens; padding in x is 0."""
    count = x.shape[1] if mask is None else mask.sum(1).clamp_min(1)[:, None, None]
    mean, second = (moment.sum(1, keepdim=True) / count for moment in (x, x.square()))
    return mean.expand_as(x), second.expand_as(x), None


def _pooled_moments(x: Tensor, position: Tensor, layout: Layout, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """P over cells of k x k tokens: means of x and x^2 in each cell, weighted by its share of real tokens.

    Every token takes its cell's moments. Cells at the end of a grid that k does not divide are cut short. As released, the
    mean of x is squared instead (the variance inside a cell is lost), and all cells with a real token weigh the same.
    """
    k, (rows, cols) = layout.pool, layout.grid
    cells = layout._replace(grid=(-(-rows // k), -(-cols // k)), pool=1)
    real = x.new_ones(x.shape[0], rows * cols, 1) if mask is None else mask[..., None].to(x.dtype)
    count = _cell_sums(real, layout)
    first, second = (_cell_sums(part, layout) / count.clamp_min(1) for part in (x, x.square()))
    if not layout.keeps_spread:
        second, count = first.square(), k * k * (count > 0)
    whole = mask is None and rows % k == cols % k == 0  # by shapes alone: all cells weigh the same
    if whole:
        kernels = [p.to(x.dtype) for p in grid_kernels(position, cells.grid, layout.radius, kernel_cut(x.dtype))]
        mean, second = mix_separable(torch.stack([first, second]), kernels, cells.grid)
        seen = None
    else:
        mean, second, seen = _weighted_moments(torch.stack([first, second]), position, cells, count[..., 0] / k**2)
    return _spread(mean, layout), _spread(second, layout), None if seen is None else _spread(seen, layout)


def _cell_sums(x: Tensor, layout: Layout) -> Tensor:
    """(b, t, c) -> (b, cells, c)"""
    k, (rows, cols) = layout.pool, layout.grid
    image = torch.nn.functional.pad(x.unflatten(1, layout.grid), (0, 0, 0, -cols % k, 0, -rows % k))
    return image.unflatten(2, (-1, k)).unflatten(1, (-1, k)).sum((2, 4)).flatten(1, 2)


def _spread(x: Tensor, layout: Layout) -> Tensor:
    """(b, cells, c) -> (b, t, c): each cell's value for all of its tokens."""
    k, (rows, cols) = layout.pool, layout.grid
    cells = x.unflatten(1, (-(-rows // k), -(-cols // k)))
    return cells.repeat_interleave(k, 1)[:, :rows].repeat_interleave(k, 2)[:, :, :cols].flatten(1, 2)
