"""Replace the DTNs of a model by their frozen form, each for the grid that it meets."""

from typing import Any

import torch
from torch import Tensor, nn

from ...convert.trace import sample_input
from ...norms import DynamicTokenNorm
from ...norms.contract import Grid
from ...norms.dtn.math import Layout
from .frozen_dtn import spelled
from .plan import FoldPlan
from .steps import Freeze, paths_of


def freeze_token_norms(
    model: nn.Module, plan: FoldPlan, grid: tuple[int, int], example: Tensor, *, resize: bool
) -> tuple[nn.Module, list[str], Tensor]:
    """Freeze every DTN of the model, in place. The first one sees `grid`, the others what they see in the same pass.

    Returns the model, the paths, and the example: with `resize` one of another size, if that is what the grid needs.
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
            f"an input of shape {tuple(example.shape)} gives a grid of {spelled(seen)} tokens, not {spelled(tuple(grid))}: "
            "fold for that grid, or give fold an example= of another size"
        )
    frozen = []
    for path, norm in norms.items():
        if len(layouts[path]) == 1:
            layout = layouts[path].pop()
            model = plan.take(model, Freeze(paths_of(model, norm), layout.grid, layout.prefix))
            new: Any = model.get_submodule(path)
            new.compute_constants(norm, layout.radius)
            frozen.append(path)
    return model, frozen, example


@torch.no_grad()
def _layouts(model: nn.Module, norms: dict[str, DynamicTokenNorm], example: Tensor) -> dict[str, set[Layout]]:
    """The layouts that each norm meets in one pass."""
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
