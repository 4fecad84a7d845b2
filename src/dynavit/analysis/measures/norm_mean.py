"""The mean that a norm subtracts at evaluation, and its distance to the tokens (Fig. 3b of DTN, arXiv 2112.02624).

It is the mu with y = weight * (x - mu) / s + bias, for some s > 0 of each token and channel.
"""

import torch
from torch import Tensor, nn

from ...norms import (
    Derf,
    DynamicTokenNorm,
    DyT,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    PowerNorm,
    ReleasedDynamicTokenNorm,
    RMSNorm,
    ScaleNorm,
    SwitchableNorm,
    UnifiedNorm,
)
from ...norms.annealed import AnnealedNorm
from ...norms.dtn.math import position_moments

WITHOUT_MEAN = (RMSNorm, nn.RMSNorm, ScaleNorm, PowerNorm, UnifiedNorm, DyT, Derf)


@torch.no_grad()
def subtracted_mean(norm: nn.Module, x: Tensor, grid: tuple[int, ...]) -> Tensor | None:
    """(b, t, c) tokens as they enter `norm`, in evaluation mode -> mu (b, t, c) in float64.

    None: there is none, see `why_no_mean`. `grid` is that of the tokens without the prefix.
    """
    x = x.double()
    match norm:
        case LayerNorm() | nn.LayerNorm(normalized_shape=(_,)):
            mean = x.mean(-1, keepdim=True)
        case InstanceNorm():
            mean = x.mean(1, keepdim=True)
        case GroupNorm():
            mean = _per_channel(x.unflatten(-1, (norm.heads, -1)).mean((1, 3)), norm.dim)[:, None]
        case SwitchableNorm():
            share, _ = norm.mixing_weights(torch.float64)
            mean = share[0] * x.mean(-1, keepdim=True) + share[1] * x.mean(1, keepdim=True) + share[2] * norm.running_mean
        case ReleasedDynamicTokenNorm():
            # It takes the mean of u = x / rms, and u - m = (x - rms m) / rms.
            squares = x.unflatten(-1, (norm.heads, -1)).square().mean(-1)
            rms = _per_channel((squares + norm.eps).sqrt(), norm.dim)
            mean = rms * _dtn_mean(norm, x / rms, grid)
        case DynamicTokenNorm():
            mean = _dtn_mean(norm, x, grid)
        case _ if hasattr(norm, "affine_map") and not isinstance(norm, WITHOUT_MEAN) and not _is_annealing(norm):
            mean = _affine_mean(norm)
        case _:
            return None
    return mean.expand_as(x)


def why_no_mean(norm: nn.Module) -> str:
    """The reason why `subtracted_mean` is None."""
    name = type(norm).__name__
    if isinstance(norm, WITHOUT_MEAN):
        return f"{name} subtracts no mean"
    if isinstance(norm, AnnealedNorm):
        return f"{name} is still {float(norm.blend):.0%} LayerNorm: a sum of two norms, each with its own mean"
    return f"the mean that {name} subtracts is not known"


def mean_coefficient(x: Tensor, mean: Tensor) -> Tensor:
    """|x - mu| / |x| of each token: (b, t, c), (b, t, c) -> (b, t) in float64. NaN where a token is all 0."""
    x, mean = x.double(), mean.double()
    return torch.where((x == 0).all(-1), torch.nan, (x - mean).norm(dim=-1) / x.norm(dim=-1))


def _dtn_mean(norm: DynamicTokenNorm, x: Tensor, grid: tuple[int, ...]) -> Tensor:
    layout = norm.layout(x.shape[1], grid if norm.ndim == 2 else None)
    position = x.new_zeros(norm.heads, 1 + norm.ndim) if norm.average == "window" else norm.position
    around, _, _ = position_moments(x[:, layout.prefix :], position, layout, None)
    own = x.mean(-1, keepdim=True).expand_as(x)
    share = _per_channel(norm.mixing_weights(x)[0], norm.dim)
    return torch.cat([own[:, : layout.prefix], torch.lerp(around, own[:, layout.prefix :], share)], 1)


def _affine_mean(norm: nn.Module) -> Tensor:
    """The x that scale * x + shift takes to the bias; 0 for a channel that the map leaves out."""
    scale, shift = (part.double() for part in norm.affine_map())  # type: ignore[operator]
    bias = torch.zeros_like(shift) if norm.bias is None else norm.bias
    return torch.where(scale == 0, 0.0, (bias - shift) / scale)


def _is_annealing(norm: nn.Module) -> bool:
    return isinstance(norm, AnnealedNorm) and float(norm.blend) > 0


def _per_channel(of_heads: Tensor, channels: int) -> Tensor:
    """(..., h) -> (..., c)"""
    return of_heads.repeat_interleave(channels // of_heads.shape[-1], -1)
