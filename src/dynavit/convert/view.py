"""The view of one norm in the planning run: order of axes, grid and prefix tokens, or the reason why it cannot be swapped."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..norms.factory import norm_class_of, options_of
from ..norms.seat import misfit
from . import trace as tracing
from .blocked import BLOCKED, on_grid, side_of
from .grid import FORWARD, Grid, MissingGridError, Page, halvings, spelled
from .plan import AxisOrder, SwapPlan
from .sites import LocatedNorm, static_prefix

LEAST = 0.1  # share of the image at a token's own place, below which the token is taken to lie elsewhere


class Trouble(Exception):
    """The reason why a norm cannot be swapped."""


@dataclass
class View:
    """The tokens that a norm receives, the same in all its calls."""

    layout: AxisOrder
    grid: Grid | None
    prefix: int
    ndim: int


class Viewer:
    """Views of the norms of one model, for the norm that is to replace them."""

    def __init__(self, model: nn.Module, plan: SwapPlan, trace: tracing.Trace | None) -> None:
        self.model, self.plan, self.trace = model, plan, trace
        norm_class = norm_class_of(plan.norm)
        self.mixes, self.needs_grid = norm_class.mixes_tokens, norm_class.needs_grid
        self.ndim = int(plan.norm_options.get("ndim", 2))
        self.prefix = static_prefix(model)
        self.is_image = any(isinstance(module, nn.Conv2d | nn.Unfold) for module in model.modules())
        self.checked: dict[Any, str] = {}  # trouble with the order of tokens, by what a norm sees
        self.disorder = ""
        self.latest: tuple[Tensor, View] | None = None  # the input of the last norm that saw blocks

    def view(self, item: LocatedNorm, calls: list[tracing.Call]) -> View:
        """The view that all calls of a norm agree on."""
        if not calls:
            return self._unseen(item)
        views = {}
        for call in calls:
            view = self._view(item, call)
            views[view.layout, view.prefix, view.ndim] = view
        if len(views) > 1:
            raise Trouble(f"is called in different ways: {', '.join(str(call.shape) for call in calls)}")
        view = next(iter(views.values()))
        if self.needs_grid and view.ndim == 2 and view.grid is not None and view.layout not in BLOCKED:
            self._check_order(item, view)
        return view

    def _unseen(self, item: LocatedNorm) -> View:
        """The view that the modules suggest, for a norm that was not seen in a run."""
        if self.needs_grid and not self.is_image and "ndim" not in self.plan.norm_options:
            remedy = " or norm_options={'ndim': 1}" if "ndim" in options_of(norm_class_of(self.plan.norm)) else ""
            raise Trouble(f"nothing says whether its tokens are an image or a sequence: pass input_size={remedy}")
        self._check_fit(self.ndim)
        if item.old.channels_first:
            return View("channels_first", None, 0, self.ndim)
        return View("tokens", None, self.prefix, self.ndim)

    def _view(self, item: LocatedNorm, call: tracing.Call) -> View:
        shape, image = call.shape, self.trace.image if self.trace is not None else None
        if len(shape) == 2:
            raise Trouble(f"sees {shape[0]} single vectors {shape}, not tokens")
        if len(shape) not in (3, 4):
            raise Trouble(f"sees {shape}, neither tokens nor a map of tokens")
        self._check_fit(2 if len(shape) == 4 else 1 if image is None else self.ndim)
        if len(shape) == 4:
            return self._map(item, call)
        return self._sequence(shape) if image is None else self._tokens(call, image)

    def _check_fit(self, ndim: int) -> None:
        if trouble := misfit(self.plan.norm, ndim):
            raise Trouble(f"{self.plan.norm} {trouble}")

    def _map(self, item: LocatedNorm, call: tracing.Call) -> View:
        """(b, rows, cols, c), (b, c, rows, cols), or blocks of the image"""
        shape = call.shape
        first = bool(call.is_ln_first and not call.is_ln) if call.is_ln is not None else item.old.channels_first
        size = (shape[2], shape[3]) if first else (shape[1], shape[2])
        layout: AxisOrder = "channels_first" if first else "map"
        if self.mixes or self.needs_grid:
            if item.place == "per head":
                raise Trouble(f"normalises queries or keys {shape} of each head, which lie on no grid")
            if size == (1, 1):
                raise Trouble("sees one cell only, there is nothing to mix")
            known = {*call.maps, *(half for grid in call.maps for half in halvings(grid))}
            is_map = shape[0] == tracing.BATCH and size in known
            blocks = [] if first or shape[0] != tracing.BATCH or (is_map and not self.needs_grid) else self._blocks(call)
            if blocks:
                return self._best(item, [View(layout, size, 0, 2), *blocks] if is_map else blocks)
            if not is_map:
                raise Trouble(
                    f"sees {shape}, which is neither a feature map of the image nor square blocks of one: "
                    "tokens are cut into windows or heads"
                )
        return View(layout, size, 0, 2)

    def _blocks(self, call: tracing.Call) -> list[View]:
        """The views of (b, m, n, c) as blocks of a feature map, as far as numbers go."""
        try:
            grid = Page(FORWARD, maps=call.maps).grid_of(call.shape[1] * call.shape[2])
        except MissingGridError:  # several maps have as many cells
            return []
        layouts = BLOCKED if min(call.shape[1:3]) > 1 else BLOCKED[:1]  # one block, or one cell in each: all the same
        return [View(each, grid, 0, 2) for each in layouts if grid is not None and side_of(each, call.shape, grid) is not None]

    def _best(self, item: LocatedNorm, views: list[View]) -> View:
        """The view by which tokens depend most on the image at their own place. Shapes alone do not tell."""
        assert self.trace is not None
        source = self.trace.tensors[item.path]
        if source.is_meta and views[0].layout == "map":
            return views[0]
        if source.is_meta or not source.requires_grad:
            raise Trouble(
                f"sees {tuple(source.shape)}, and how blocks of the image lie there cannot be measured on {source.device}"
            )
        if self.latest is not None:
            before, view = self.latest
            if before.shape == source.shape and view in views and tracing.same_places(before, source):
                self.latest = source, view
                return view
        shares = [min((share for share, _ in self._places(item, view, self._cells(view, 4))), default=0.0) for view in views]
        if views[0].layout == "map":  # what most models have needs less evidence
            shares[0] = max(2 * shares[0], LEAST)
        best = max(range(len(views)), key=lambda index: shares[index])
        if shares[best] < LEAST:
            raise Trouble(
                f"sees {tuple(source.shape)}, and in no order of square blocks do its tokens depend on the image at their place"
            )
        self.latest = source, views[best]
        return views[best]

    def _sequence(self, shape: tuple[int, ...]) -> View:
        """(b, t, c) or (t, b, c), of a model that takes no images."""
        batch_first = shape[0] == tracing.BATCH
        if not batch_first and shape[1] != tracing.BATCH:
            raise Trouble(f"sees {shape} for {tracing.BATCH} sequences")
        return View("tokens" if batch_first else "sequence_first", None, 0, 1)

    def _tokens(self, call: tracing.Call, image: Grid) -> View:
        """(b, t, c) or (t, b, c), of an image."""
        layout: AxisOrder = "tokens"
        batch, tokens = call.shape[:2]
        if batch != tracing.BATCH and tokens == tracing.BATCH:
            layout, batch, tokens = "sequence_first", tokens, batch
        if not self.mixes and not self.needs_grid:
            return View(layout if batch == tracing.BATCH else "tokens", None, 0, self.ndim)
        if batch != tracing.BATCH:
            raise Trouble(
                f"sees {call.shape} for {tracing.BATCH} images: tokens are cut into windows or heads, and their place is lost"
            )
        if tokens == 1:
            raise Trouble("sees one token only, there is nothing to mix")
        if not self.needs_grid or self.ndim == 1:
            return View(layout, None, self.prefix if self.needs_grid else 0, self.ndim)
        grid, prefix = self._grid_and_prefix(tokens, call.maps, image)
        return View(layout, grid, prefix, 2)

    def _grid_and_prefix(self, tokens: int, maps: list[Grid], image: Grid) -> tuple[Grid, int]:
        try:
            match = tracing.grid_and_prefix(tokens, maps, self.prefix)
        except MissingGridError as error:
            raise Trouble(str(error)) from None
        if match is None and not maps:
            match = self._patches(tokens, image)
        if match is None:
            so_far = ", ".join(spelled(grid) for grid in dict.fromkeys(maps)) or "none"
            raise Trouble(f"sees {tokens} tokens, which no feature map of the model explains (maps so far: {so_far})")
        return match

    def _patches(self, tokens: int, image: Grid) -> tuple[Grid, int] | None:
        """A patch embedding without a convolution: square patches, to be confirmed by `_check_order`."""
        for prefix in dict.fromkeys((self.prefix, 0, 1)):
            grid = tracing.patch_grid(tokens - prefix, image) if tokens > prefix else None
            if grid is not None and next(self.model.parameters()).device != torch.device("meta"):
                self.plan.patch = (image[0] // grid[0], image[1] // grid[1])
                return grid, prefix
        return None

    def _check_order(self, item: LocatedNorm, view: View) -> None:
        """Tokens must lie on the grid row by row; the first norm that sees a grid answers for the others that see it."""
        assert self.trace is not None and view.grid is not None
        if self.disorder:
            raise Trouble(self.disorder)
        key = (view.grid, view.prefix, view.layout, self.trace.tensors[item.path].shape)
        if key not in self.checked:
            first = not self.checked
            self.checked[key] = self._order_trouble(item, view, least=0.1 if first else 0.01)
            if first and self.checked[key]:
                self.disorder = self.checked[key]  # what follows is made of the same tokens
        if self.checked[key]:
            raise Trouble(self.checked[key])

    def _order_trouble(self, item: LocatedNorm, view: View, least: float) -> str:
        assert view.grid is not None
        if view.layout == "sequence_first" or math.prod(view.grid) <= 4:
            return ""
        cells = self._cells(view, 2)
        places = self._places(item, view, cells)
        if not places and self.plan.patch is not None:
            return "the place of its tokens in the image cannot be measured"
        # In deep layers attention has mixed everything with everything. Only a token that hardly depends on its own place
        # is evidence against the order.
        for cell, (share, place) in zip(cells, places, strict=False):
            if share < least:
                return (
                    f"its tokens do not lie row by row on the {spelled(view.grid)} grid: "
                    f"the one that should be at {cell} depends on the image at {place}"
                )
        return ""

    def _cells(self, view: View, count: int) -> list[Grid]:
        """Cells away from the diagonals, where rows and columns cannot be taken for each other."""
        assert view.grid is not None
        rows, cols = view.grid
        eighths = [(2, 6), (6, 2), (1, 3), (5, 4)][:count]
        return [(rows * down // 8, cols * across // 8) for down, across in eighths]

    def _places(self, item: LocatedNorm, view: View, cells: list[Grid]) -> list[tuple[float, Grid]]:
        assert self.trace is not None and view.grid is not None
        source = self.trace.tensors[item.path]
        if view.layout in BLOCKED:
            side = side_of(view.layout, source.shape, view.grid)
            assert side is not None
            tokens = on_grid(source, view.layout, view.grid, side)
        elif view.layout == "channels_first":
            tokens = source.permute(0, 2, 3, 1)
        else:
            tokens = source if source.dim() == 4 else source[:, view.prefix :].unflatten(1, view.grid)
        places: list[tuple[float, Grid]] = []
        for start in range(0, len(cells), tracing.BATCH):
            places += tracing.place_of(self.trace, tokens, cells[start : start + tracing.BATCH])
        return places
