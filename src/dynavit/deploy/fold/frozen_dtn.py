"""Dynamic Token Normalization with everything learned turned into constants, for one grid."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ...convert.trace import sample_input
from ...norms import DynamicTokenNorm, Norm
from ...norms.contract import Grid
from ...norms.dtn.kernels import centred, grid_kernels, kernel_cut, mix_separable
from ...norms.dtn.math import Layout
from .sites import carry_hooks


class FrozenTokenNorm(Norm):
    """What a trained DTN computes on one grid, with its kernels and mixing weights as buffers.

    Shape: (b, prefix + t, c) -> the same, without a mask. Buffers: `kernel_0` (h, rows, rows), `kernel_1` (h, cols, cols), and
    the intra-token share of means and variances, `mean_share` and `var_share` (c).
    """

    mean_share: Tensor
    var_share: Tensor

    def __init__(self, norm: DynamicTokenNorm, layout: Layout) -> None:
        super().__init__(norm.dim, heads=norm.heads, eps=norm.eps, affine=False)
        self.weight, self.bias, self.affine = norm.weight, norm.bias, norm.affine
        self.grid, self.prefix = layout.grid, layout.prefix
        like = next((p for p in norm.parameters() if p.is_floating_point()), torch.empty(0))
        with torch.no_grad():
            for name, share in zip(("mean_share", "var_share"), norm.mixing_weights(like), strict=True):
                self.register_buffer(name, share.detach().repeat_interleave(norm.dim // norm.heads))
            if norm.average == "uniform":
                kernels = [torch.full((norm.heads, n, n), 1 / n, dtype=torch.float64) for n in layout.grid]
            else:
                zeros = like.new_zeros(norm.heads, 1 + norm.ndim)
                position = norm.position if norm.position is not None else zeros
                kernels = grid_kernels(position.detach(), layout.grid, layout.radius, kernel_cut(like.dtype))
            for axis, kernel in enumerate(kernels):
                self.register_buffer(f"kernel_{axis}", kernel.to(like))

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        if mask is not None:
            raise ValueError("this DTN was frozen for tokens without a mask: use the unfolded model")
        if (grid is not None and tuple(grid) != self.grid) or x.shape[1] != self.prefix + math.prod(self.grid):
            raise ValueError(
                f"this DTN was frozen for a grid of {_spelled(self.grid)} tokens and got {x.shape[1] - self.prefix} tokens on "
                f"{_spelled(grid) if grid else 'an unknown grid'}: use the unfolded model, or fold it for that grid"
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
        return f"{super().extra_repr()}, grid={_spelled(self.grid)}"


def freeze_token_norms(model: nn.Module, grid: tuple[int, int], example: Tensor, *, resize: bool) -> tuple[list[str], Tensor]:
    """Freeze every DTN of the model, in place. The first one sees `grid`, the others what they see in the same pass.

    Returns their paths, and the example: with `resize` one of another size, if that is what the grid needs.
    """
    norms = {path: module for path, module in model.named_modules() if type(module) is DynamicTokenNorm}
    if not norms:
        raise ValueError(f"grid={grid} is for a model with DTN, and {type(model).__name__} has none: leave grid out")
    layouts = _layouts(model, norms, example)
    seen = _first_grid(layouts)
    if seen != tuple(grid) and resize and len(seen) == 2:
        size = [side * wanted // was for side, wanted, was in zip(example.shape[2:], grid, seen, strict=True)]
        resized = sample_input(model, (example.shape[1], *size))
        assert resized is not None
        example, layouts = resized, _layouts(model, norms, resized)
        seen = _first_grid(layouts)
    if seen != tuple(grid):
        raise ValueError(
            f"an input of shape {tuple(example.shape)} gives a grid of {_spelled(seen)} tokens, not {_spelled(tuple(grid))}: "
            "give fold an example= of the size that it will see"
        )
    frozen = []
    for path, norm in norms.items():
        if len(layouts[path]) == 1:
            new = carry_hooks(norm, FrozenTokenNorm(norm, layouts[path].pop()))
            for each in [p for p, module in model.named_modules(remove_duplicate=False) if module is norm]:
                model.set_submodule(each, new)
            frozen.append(path)
    return frozen, example


@torch.no_grad()
def _layouts(model: nn.Module, norms: dict[str, DynamicTokenNorm], example: Tensor) -> dict[str, set[Layout]]:
    """Which layouts each norm meets in one pass."""
    found: dict[str, set[Layout]] = {path: set() for path in norms}

    def watch(path: str, norm: Any) -> None:
        original = norm.layout

        def layout(tokens: int, grid: Grid | None) -> Layout:
            found[path].add(original(tokens, grid))
            return original(tokens, grid)

        norm.layout = layout

    for path, norm in norms.items():
        watch(path, norm)
    try:
        model(example)
    finally:
        for norm in norms.values():
            del norm.layout
    return found


def _first_grid(layouts: dict[str, set[Layout]]) -> Grid:
    return next((layout.grid for met in layouts.values() for layout in met), ())


def _spelled(grid: Grid) -> str:
    return "x".join(map(str, grid)) or "no"
