"""Dynamic Token Normalization with everything learned turned into constants, for one grid."""

import math

import torch
from torch import Tensor

from ...norms import DynamicTokenNorm, Norm
from ...norms.contract import Grid
from ...norms.dtn.kernels import centred, grid_kernels, kernel_cut, mix_separable


class FrozenTokenNorm(Norm):
    """A trained DTN on one grid, with its kernels and mixing weights as buffers.

    Shape: (b, prefix + t, c) -> the same, without a mask. Buffers: `kernel_0` (h, rows, rows), `kernel_1` (h, cols, cols), and
    the intra-token share of means and variances, `mean_share` and `var_share` (c).
    """

    mean_share: Tensor
    var_share: Tensor

    def __init__(self, norm: DynamicTokenNorm, grid: Grid, prefix: int) -> None:
        """The structure, with the parameters `weight` and `bias` of the DTN; `compute_constants` fills the buffers."""
        super().__init__(norm.dim, heads=norm.heads, eps=norm.eps, affine=False)
        self.weight, self.bias, self.affine = norm.weight, norm.bias, norm.affine
        self.grid, self.prefix = grid, prefix
        like = _first_parameter(norm)
        for name in ("mean_share", "var_share"):
            self.register_buffer(name, like.new_zeros(norm.dim))
        for axis, side in enumerate(grid):
            self.register_buffer(f"kernel_{axis}", like.new_zeros(norm.heads, side, side))

    @torch.no_grad()
    def compute_constants(self, norm: DynamicTokenNorm, radius: int | None) -> None:
        """Kernels and mixing weights from what the DTN has learned; `radius` is that of its layout on this grid."""
        like = _first_parameter(norm)
        for buffer, share in zip((self.mean_share, self.var_share), norm.mixing_weights(like), strict=True):
            buffer.copy_(share.repeat_interleave(norm.dim // norm.heads))
        if norm.average == "uniform":
            kernels = [torch.full((norm.heads, n, n), 1 / n, dtype=torch.float64) for n in self.grid]
        else:
            position = norm.position if norm.position is not None else like.new_zeros(norm.heads, 1 + norm.ndim)
            kernels = grid_kernels(position.detach(), self.grid, radius, kernel_cut(like.dtype))
        for axis, kernel in enumerate(kernels):
            self.get_buffer(f"kernel_{axis}").copy_(kernel)

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        if mask is not None:
            raise ValueError("this DTN was frozen for tokens without a mask: use the unfolded model")
        if (grid is not None and tuple(grid) != self.grid) or x.shape[1] != self.prefix + math.prod(self.grid):
            raise ValueError(
                f"this DTN was frozen for a grid of {spelled(self.grid)} tokens and got {x.shape[1] - self.prefix} tokens on "
                f"{spelled(grid) if grid else 'an unknown grid'}: use the unfolded model, or fold it for that grid"
            )
        first, x = x[:, : self.prefix], x[:, self.prefix :]
        inside, centre = centred(x, None)
        # As in norms/dtn/math.py: intra-token moments in coordinates in which a large common mean never enters a difference.
        offset = centre - centre.mean(-1, keepdim=True)
        token = inside + offset
        mean_ln = token.mean(-1, keepdim=True)
        var_ln = (token - mean_ln).square().mean(-1, keepdim=True)
        kernels = [self.get_buffer(f"kernel_{axis}").to(x.dtype) for axis in range(len(self.grid))]
        mean, second = mix_separable(torch.stack([inside, inside.square()]), kernels, self.grid)
        var = (second - mean.square()).clamp_min(0)
        mean_share, var_share = self.mean_share.to(x.dtype), self.var_share.to(x.dtype)
        mu = mean_share * (mean_ln - offset) + (1 - mean_share) * mean
        sigma2 = var_share * var_ln + (1 - var_share) * var
        y = (inside - mu) / (sigma2 + self.eps).sqrt()
        if not self.prefix:
            return y
        first = first - first.mean(-1, keepdim=True)
        return torch.cat([first / (first.square().mean(-1, keepdim=True) + self.eps).sqrt(), y], 1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, grid={spelled(self.grid)}"


def spelled(grid: Grid) -> str:
    """2x6, for people."""
    return "x".join(map(str, grid)) or "no"


def _first_parameter(norm: DynamicTokenNorm) -> Tensor:
    return next((p for p in norm.parameters() if p.is_floating_point()), torch.empty(0))
