"""Hooks on a swapped norm: its caller only knows `norm(x)`, the norm takes (b, t, c) and wants its grid."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .blocked import BLOCKED, CutGrid, cut, on_grid, side_of
from .grid import Carrier, MissingGridError, count_of, spelled
from .plan import AxisOrder


@dataclass(eq=False)
class SiteHook:
    """Brings tokens into the norm's order of axes and back, and hands over the grid."""

    path: str
    layout: AxisOrder
    prefix: int = 0
    carrier: Carrier | None = None  # None: the norm needs no grid of an image
    sequence: bool = False  # the norm needs the grid of a sequence, (t,)

    def before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x, *rest = args if args else (kwargs.pop("x", None) if "x" in kwargs else kwargs.pop("input"),)
        if self.layout == "channels_first":
            x = x.permute(0, 2, 3, 1)
        elif self.layout == "sequence_first":
            x = x.transpose(0, 1)
        elif self.layout in BLOCKED and self.carrier is not None:
            grid = self._grid(x, self.carrier)
            side = side_of(self.layout, x.shape, grid)
            if side is None:
                raise MissingGridError(
                    f"{self.path}: got {tuple(x.shape)}, which are no square blocks of the {spelled(grid)} grid"
                )
            x, kwargs = on_grid(x, self.layout, grid, side), {**kwargs, "grid": CutGrid(grid, side)}
        if x.dim() == 3 and not rest and kwargs.get("grid") is None:
            if self.carrier is not None:
                kwargs = {**kwargs, "grid": self._grid(x, self.carrier)}
            elif self.sequence:
                kwargs = {**kwargs, "grid": (x.shape[1] - self.prefix,)}
        return (x, *rest), kwargs

    def after(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
        if self.layout == "channels_first":
            return output.permute(0, 3, 1, 2)
        if self.layout in BLOCKED:
            return cut(output, self.layout, kwargs["grid"].side)
        return output.transpose(0, 1) if self.layout == "sequence_first" else None

    def _grid(self, x: Tensor, carrier: Carrier) -> tuple[int, int]:
        grid = carrier.find(x, self.prefix)
        if grid is None:
            extra = f" + {self.prefix} prefix tokens" if self.prefix else ""
            seen = " or ".join(spelled(each) for grids in carrier.seen.values() for each in sorted(grids))
            raise MissingGridError(
                f"{self.path}: got {count_of(x)} tokens and no feature map of this forward pass has that many cells{extra}"
                + (f" (grids seen so far: {seen})" if seen else "")
                + ". Call the model on images, or give the grid: `with dynavit.convert.token_grid(rows, cols):`"
            )
        if not torch.compiler.is_compiling():
            carrier.seen.setdefault(count_of(x) - self.prefix, set()).add(grid)
            carrier.bind(x, grid)
        return grid


def hook_of(norm: nn.Module) -> SiteHook | None:
    """The hook that `swap_norms` has put on a norm, if it has."""
    for hook in norm._forward_pre_hooks.values():
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, SiteHook):
            return owner
    return None
