"""Pure tensor functions: positional kernels and the statistics of Dynamic Token Normalization, in plain torch.

Axes: b samples, t tokens on a grid of y rows and x columns, c channels, h heads, d = c / h channels of a head.
`position` holds (a_0, a_x, a_y) per head in 2-D and (a_0, a_x) in 1-D: the score of source j for target i is
a_0 |j - i|^2 + a_x dx + a_y dy, with (dx, dy) = j - i.
"""

import math

import torch
from torch import Tensor

# The masked form P(m x) / P(m) divides by the mass that a row has on real tokens, so it needs smaller weights than a whole
# row does; below LEAST_MASS the row counts as seeing no real token.
MASKED_CUT, LEAST_MASS = 1e-30, 1e-25


def kernel_cut(dtype: torch.dtype) -> float:
    """Weights below this share of their row's largest one change nothing at this precision and are set to zero.

    The mass that a row loses is of the size of the cut, less than rounding a single number loses. Left in, small weights
    cost products, and the smallest become subnormal numbers, on which CPUs multiply 10 to 30 times slower.
    """
    return torch.finfo(dtype).eps / 20


def axis_kernel(
    a2: Tensor, a1: Tensor, n: int, radius: int | None = None, cut: float = 0.0, real: Tensor | None = None
) -> Tensor:
    """P along one axis: (h,), (h,) -> (h, n, n), P[h, i, j] = softmax over j of a2 (j-i)^2 + a1 (j-i), |j-i| <= radius.

    Computed in float64: scores reach millions on long axes while weights depend on their differences.

    Args:
        real: (b, n) the sources that get weight in each sample, for kernels (b, h, n, n).
    """
    at = torch.arange(n, device=a2.device, dtype=torch.float64)
    offset = at[None, :] - at[:, None]
    allowed = offset.abs() <= (n if radius is None else radius)
    return offset_kernel(a2, a1, offset, allowed if real is None else allowed & real[:, None, :], cut)


def grid_kernels(
    position: Tensor,
    grid: tuple[int, ...],
    radius: int | None = None,
    cut: float = 0.0,
    real: tuple[Tensor, ...] | None = None,
) -> list[Tensor]:
    """The factors of P in float64: [Py, Px] with P = Py (x) Px in 2-D, [P] in 1-D.

    Args:
        real: (b, n) for each axis, see `axis_kernel`.
    """
    slopes = position[:, 1:].unbind(1)[::-1]  # position is [d^2, dx, dy]; the grid is (rows, cols)
    axes = zip(slopes, grid, real or (None,) * len(grid), strict=True)
    return [axis_kernel(position[:, 0], slope, n, radius, cut, sources) for slope, n, sources in axes]


def offset_kernel(a2: Tensor, a1: Tensor, offset: Tensor, allowed: Tensor, cut: float = 0.0) -> Tensor:
    """Row-softmax over the last axis of a2 offset^2 + a1 offset where `allowed`: (h,), (h,), (..., m) -> (..., h?, m).

    `offset` is (i, j) for a kernel (h, i, j); `allowed` is (i, j), or (b, i, j) for kernels (b, h, i, j) of masked samples.
    Rows in which nothing is allowed are all zero.
    """
    scores = (a2.double()[:, None, None] * offset + a1.double()[:, None, None]) * offset
    allowed = allowed.unsqueeze(-3)
    top = torch.where(allowed, scores, -torch.inf).amax(-1, keepdim=True).detach()
    # Not allowed entries take exponent 0 before they are thrown away: no inf - inf, no NaN gradient.
    weights = torch.where(allowed, scores - torch.where(top > -torch.inf, top, 0.0), 0.0).exp()
    # Not `weights >= cut`: a NaN parameter must stay visible.
    weights = torch.where(allowed & ~(weights < cut), weights, 0.0)
    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)


def centred(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """(b, t, c) -> x minus its mean over the (valid) tokens of each sample and channel, and that mean (b, 1, c).

    The centre is detached: no statistic below depends on where the origin lies, so no gradient is lost.
    """
    with torch.no_grad():
        if mask is None:
            centre = x.mean(1, keepdim=True)
        else:
            count = mask.sum(1).clamp_min(1)[:, None, None]
            centre = torch.where(mask[..., None], x, 0.0).sum(1, keepdim=True) / count
    inside = x - centre
    return inside if mask is None else torch.where(mask[..., None], inside, 0.0), centre


def mix_separable(tensors: Tensor, kernels: list[Tensor], grid: tuple[int, ...]) -> Tensor:
    """P x for P = Py (x) Px, one axis after the other: (..., t, c) with kernels (h, y, y), (h, x, x) -> (..., t, c).

    With one kernel (1-D), grid = (t,). Kernels of each sample, (b, h, n, n), take tensors (..., b, t, c). No tensor of t^2
    elements is made in 2-D.
    """
    heads, channels = kernels[0].shape[-3], tensors.shape[-1]
    samples = "b" if kernels[0].dim() == 4 else ""
    lead = (math.prod(tensors.shape[:-3]), tensors.shape[-3]) if samples else (math.prod(tensors.shape[:-2]),)
    out = tensors.reshape(*lead, *grid, heads, channels // heads)
    if len(grid) == 1:
        out = torch.einsum(f"{samples}hij,s{samples}jhd->s{samples}ihd", kernels[0], out)
    else:
        out = torch.einsum(f"{samples}hij,s{samples}jxhd->s{samples}ixhd", kernels[0], out)
        out = torch.einsum(f"{samples}hij,s{samples}yjhd->s{samples}yihd", kernels[1], out)
    return out.reshape(tensors.shape)
