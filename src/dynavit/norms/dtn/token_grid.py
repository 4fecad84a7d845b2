"""The grid that a number of tokens lies on, and errors that say which grid would fit."""

import math

from ..contract import Grid


def resolve_grid(layer: str, tokens: int, prefix: int, ndim: int, grid: Grid | None) -> Grid:
    """The grid of `tokens` tokens, `prefix` of which lie outside it. Without a given grid, a square (1-D: the length)."""
    patches = tokens - prefix
    extra = f" + {prefix} prefix tokens" if prefix else ""
    if patches < 1:
        raise ValueError(f"{layer}: got {tokens} tokens, of which num_prefix_tokens={prefix} lie outside the grid")
    if grid is None:
        if ndim == 1:
            return (patches,)
        side = 1
        while side * side < patches:  # not math.isqrt: torch.compile cannot take it of a size that changes between calls
            side += 1
        if side * side != patches:
            raise ValueError(
                f"{layer}: got {tokens} tokens and no grid; without one, a square{extra} is expected. "
                f"Pass grid=(rows, cols){_hint(tokens, math.isqrt(tokens) ** 2, prefix)}; a model built without this layer and "
                "given to dynavit.swap_norms gets both by itself"
            )
        return (side, side)
    if isinstance(grid, int):
        raise ValueError(f"{layer}: got grid={grid}; pass {'grid=(length,)' if ndim == 1 else 'grid=(rows, cols)'}")
    grid = tuple(int(n) for n in grid)
    if len(grid) != ndim:
        raise ValueError(
            f"{layer}: got grid={grid}, but the layer has ndim={ndim}; "
            f"pass {'grid=(length,)' if ndim == 1 else 'grid=(rows, cols)'} or build it with ndim={len(grid)}"
        )
    if any(n < 1 for n in grid):
        raise ValueError(f"{layer}: got grid={grid}; each side counts tokens, at least 1")
    if math.prod(grid) != patches:
        raise ValueError(
            f"{layer}: got {tokens} tokens, but grid {'x'.join(map(str, grid))}{extra} "
            f"has {math.prod(grid) + prefix}{_hint(tokens, math.prod(grid), prefix)}"
        )
    return grid


def _hint(tokens: int, patches: int, prefix: int) -> str:
    """The number of prefix tokens that would explain a count that does not fit, as advice."""
    likely = tokens - patches
    return f", or build the layer with num_prefix_tokens={likely}" if 0 <= likely <= 8 and likely != prefix else ""
