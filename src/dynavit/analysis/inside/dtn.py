"""Learned parameters of Dynamic Token Normalization: the positional weights of each head, the norm that each layer became."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from ...norms import DynamicTokenNorm
from ..measures.dtn_nature import dtn_nature
from ..measures.positions import initial_matrices, positional_matrices

Grid = tuple[int, int]
INITS: tuple[Literal["local", "trunc_normal"], ...] = ("local", "trunc_normal")


def token_on(grid: Grid, place: tuple[float, float] | None) -> tuple[int, int]:
    """The token of a grid at `place`, shares of its height and width; None: the middle one, the paper's 91st of 14 x 14."""
    if place is None:
        return (grid[0] - 1) // 2, grid[1] // 2
    row, col = (min(int(share * side), side - 1) for share, side in zip(place, grid, strict=True))
    return row, col


def positions(
    norms: Mapping[str, tuple[nn.Module, Grid]], start: nn.Module | None, place: tuple[float, float] | None
) -> dict[str, Any] | None:
    """P of one token, before and after training, of norms with their grids. `start`: the model before training, if known."""
    found: list[dict[str, Any]] = []
    inits: dict[str, list[dict[str, Any]]] = {init: [] for init in INITS}
    first: DynamicTokenNorm | None = None
    for path, (norm, grid) in norms.items():
        if not isinstance(norm, DynamicTokenNorm) or norm.position is None or norm.ndim != 2:
            continue
        first = first or norm
        row, col = token_on(grid, place)
        token = row * grid[1] + col
        before = start.get_submodule(path) if start is not None else None
        if isinstance(before, DynamicTokenNorm):
            old = positional_matrices(before, grid, token)
        else:
            old = initial_matrices(norm, grid, token, norm.init, seed=0)
        new = positional_matrices(norm, grid, token)
        where = {"grid": list(grid), "token": [row, col]}
        found.append({"path": path, **where, "before": old.tolist(), "after": new.tolist()})
        if all(len(known["values"]) != norm.heads or known["grid"] != list(grid) for known in inits["local"]):
            for init in INITS:
                values = initial_matrices(norm, grid, token, init, seed=0).tolist()
                inits[init].append({**where, "values": values})
    if first is None:
        return None
    return {"token": found[0]["token"], "init": first.init, "layers": found, "inits": inits}


def natures(norms: Mapping[str, tuple[nn.Module, Grid]], sites: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"path": path, "site": sites[path], **dtn_nature(norm, grid)}
        for path, (norm, grid) in norms.items()
        if isinstance(norm, DynamicTokenNorm)
    ]
