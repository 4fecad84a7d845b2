"""The course of one forward pass, from which the places of tokens are found: modules under way, and grids seen so far.

A sequence of tokens does not tell its grid. It is looked for in this order:
1. among the arguments of the calls under way, the innermost first,
2. in an input (b, rows, cols, c) of such a call,
3. among feature maps made earlier in the pass and grids given earlier, the latest first,
4. among halves of these (strided attention makes them), and at last as the one rectangle with the image's shape.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...convert.grid import halvings, spelled
from ...convert.sites import static_prefix
from .places import Grid, Places, as_pair, in_windows, of_cells, on_grid

MAP_MAKERS = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
MOST_IN_FRONT = 8  # class, distillation and register tokens


class UnknownPlace(ValueError):
    """The places of these tokens could not be found."""


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """A module whose `forward` is running."""

    path: str
    module: nn.Module
    arguments: tuple[Any, ...]

    @property
    def tokens(self) -> Tensor | None:
        """The first argument that may be tokens: (b, t, c), (b, rows, cols, c) or (b, c, rows, cols)."""
        return next((x for x in self.arguments if isinstance(x, Tensor) and x.dim() in (3, 4)), None)

    @property
    def grids(self) -> list[Grid]:
        return [pair for x in self.arguments if isinstance(x, tuple | list) and (pair := as_pair(tuple(x))) and min(pair) > 0]


@dataclass(frozen=True, eq=False)
class Map:
    """A convolution or pooling that has run: from which grid to which."""

    path: str
    maker: nn.Module
    before: Grid
    after: Grid


@dataclass(eq=False)
class Course:
    images: Tensor
    running: list[ModuleCall] = field(default_factory=list)  # the innermost last
    maps: list[Map] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)  # of maps, and given; the latest last

    def enter(self, call: ModuleCall) -> None:
        self.running.append(call)
        self.grids += call.grids

    def leave(self, output: Any) -> None:
        call = self.running.pop()
        x = call.tokens
        if isinstance(call.module, MAP_MAKERS) and x is not None and x.dim() == 4 and isinstance(output, Tensor):
            made = Map(call.path, call.module, (x.shape[2], x.shape[3]), (output.shape[2], output.shape[3]))
            self.maps.append(made)
            self.grids.append(made.after)

    def grid_of(self, path: str, tokens: int, channels: int) -> tuple[Grid, int] | None:
        """The grid of so many tokens, and the number in front of it. None: these are only class tokens and the like."""
        stated = [0, *(static_prefix(call.module) for call in self.running)]
        seen = [*self._given(), *self._channels_last(channels), *reversed(self.grids)]
        found = _fit(tokens, seen, stated)
        if found is None and tokens <= max(stated):
            return None
        found = (
            found
            or _fit(tokens, (half for grid in seen for half in halvings(grid)), [0])
            or _fit(tokens, seen, range(1, MOST_IN_FRONT + 1))
            or next(((grid, prefix) for prefix in stated if (grid := self._shaped_like_image(tokens - prefix))), None)
        )
        if found is None:
            tried = ", ".join(map(spelled, dict.fromkeys(seen))) or "none were seen"
            raise UnknownPlace(
                f"{path}: {tokens} tokens lie on no known grid. Tried were the grids and feature maps of this pass ({tried}) "
                f"with 0 to {MOST_IN_FRONT} tokens in front, their halves, and a rectangle shaped like the image"
            )
        return found

    def places(self, call: ModuleCall, windows: int, queries: int, keys: int) -> Places | None:
        """Places of the tokens of an attention. None: these are not tokens, or queries of which nothing is known."""
        x = call.tokens
        if x is None or not {queries, keys} & _counts(x):
            return None
        channels = x.shape[-1]
        if queries == keys:
            found = self._window_places(call, channels, windows, queries)
            if found is not None:
                return found
        if windows != 1:
            raise UnknownPlace(
                f"{call.path}: it attends to {windows} groups of {keys} tokens in each image, and no block around it has the "
                "`window_size` and the (batch, rows, cols, channels) input that tell where these lie"
            )
        tokens = queries if queries in _counts(x) else keys
        located = self.grid_of(call.path, tokens, channels)
        if located is None:
            return None
        grid, prefix = located
        own = on_grid(grid, prefix)
        if queries == keys:
            return Places(own[None], own[None], grid)
        if queries == tokens:
            return Places(own[None], self._reduced(call, grid, prefix, keys)[None], grid)
        stride = as_pair(getattr(call.module, "stride", None))
        if stride is not None and not prefix:
            coarse = (-(-grid[0] // stride[0]), -(-grid[1] // stride[1]))
            if math.prod(coarse) == queries:  # every stride-th token is a query: query (1, 1) stands on key (stride, stride)
                return Places(on_grid(coarse)[None], (own / torch.tensor(stride))[None], coarse)
        if queries <= max(prefix, 1):  # only the class token is a query
            return Places(torch.full((1, queries, 2), torch.nan), own[None], grid)
        return None

    def _reduced(self, call: ModuleCall, grid: Grid, prefix: int, keys: int) -> Tensor:
        """The places of fewer keys than queries, made by a convolution or pooling inside the attention."""
        for made in reversed(self.maps):
            for front in {prefix, 0}:
                inside = made.path.startswith(f"{call.path}.") and made.before == grid
                if inside and math.prod(made.after) + front == keys:
                    nowhere = torch.full((front, 2), torch.nan)
                    return torch.cat([nowhere, of_cells(made.maker, grid, made.after)])
        raise UnknownPlace(
            f"{call.path}: {math.prod(grid) + prefix} tokens on {spelled(grid)} attend to {keys} keys, and no convolution or "
            "pooling inside the attention makes that many"
        )

    def _window_places(self, call: ModuleCall, channels: int, windows: int, tokens: int) -> Places | None:
        for around in reversed(self.running[: self.running.index(call)]):
            window, x = as_pair(getattr(around.module, "window_size", None)), around.tokens
            if window is None or min(window) < 1 or x is None or x.dim() != 4 or x.shape[-1] != channels:
                continue
            grid = (x.shape[1], x.shape[2])
            places = in_windows(grid, window, as_pair(getattr(around.module, "shift_size", 0)) or (0, 0))
            if places.shape[:2] == (windows, tokens):
                return Places(places, places, grid)
        return None

    def _given(self) -> Iterator[Grid]:
        for call in reversed(self.running):
            yield from call.grids

    def _channels_last(self, channels: int) -> Iterator[Grid]:
        for call in reversed(self.running):
            x = call.tokens
            if x is not None and x.dim() == 4 and x.shape[-1] == channels:
                yield x.shape[1], x.shape[2]

    def _shaped_like_image(self, tokens: int) -> Grid | None:
        height, width = self.images.shape[2:]
        rows = math.isqrt(tokens * height // width)
        return (rows, tokens // rows) if rows and rows * rows * width == tokens * height else None


def _fit(tokens: int, grids: Iterable[Grid], in_front: Iterable[int]) -> tuple[Grid, int] | None:
    """The first grid that, with so many tokens in front, makes up the count."""
    allowed = set(in_front)
    return next(((grid, tokens - math.prod(grid)) for grid in grids if tokens - math.prod(grid) in allowed), None)


def _counts(x: Tensor) -> set[int]:
    """Numbers of tokens that an input (b, t, c), (b, rows, cols, c) or (b, c, rows, cols) may hold."""
    return {x.shape[1]} if x.dim() == 3 else {x.shape[1] * x.shape[2], x.shape[2] * x.shape[3]}
