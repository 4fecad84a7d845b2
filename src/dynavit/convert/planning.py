"""From a model to the plan of its swap."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..norms.factory import folds, norm_class_of
from . import trace as tracing
from .causal import causal_modules, causal_reason, mixes_tokens
from .grid import Grid, MissingGridError, halvings, spelled
from .linear_bn import find_linear_bn
from .plan import Layout, SwapPlan, SwapRow
from .select import Where, selector
from .sites import Found, find_norms, static_prefix

NEED_GRID = frozenset({"dtn", "dtn_released"})
USE_HEADS = frozenset({"dtn", "dtn_released", "gn", "power"})
ONLY_2D = frozenset({"dtn_released"})


def plan_swap(
    model: nn.Module,
    norm: str = "dtn",
    *,
    where: Where | None = None,
    norm_options: dict[str, Any] | None = None,
    causal: bool = False,
    input_size: Any = None,
) -> SwapPlan:
    """Say what `swap_norms` would do to each norm of a model, and why; nothing is changed.

    By default the norms of blocks that belong to attention and MLP are swapped; for a norm that folds away at evaluation every
    norm is, since one that stays would be all that is left to compute. The model is run once, in evaluation mode, on random
    input, if its input size is given or can be read from it.

    Args:
        norm: a name of `list_norms()`.
        where: a name pattern ("blocks.*.norm1"), a list of them, a range of block indices, a function of a row, or a dict
            with any of "pattern", "depth" (first, last) and "site" ("attn", "mlp", "other", "linear_bn").
        norm_options: options of the norm; a "heads" or "ndim" here overrides what the model says.
        causal: the model is run with a causal mask. (One that is passed when the model is called cannot be seen.)
        input_size: 224, (rows, cols) or (channels, rows, cols): the image of the planning run.
    """
    return plan_and_trace(model, norm, where, norm_options, causal, input_size)[0]


def plan_and_trace(
    model: nn.Module, norm: str, where: Where | None, norm_options: dict[str, Any] | None, causal: bool, input_size: Any
) -> tuple[SwapPlan, tracing.Trace | None]:
    norm_class_of(norm)  # a wrong name is an error before anything is run
    options = dict(norm_options or {})
    plan = SwapPlan(type(model).__name__, norm, [], options, causal=causal)
    found = find_norms(model) + find_linear_bn(model)
    trace = _try(model, found, input_size, plan)
    planner = _Planner(model, plan, found, trace)
    rows = [planner.row(item) for item in found]
    plan.rows = [row for row, _ in rows]
    if where is not None:
        chosen = selector(where, plan.rows)
        plan.rows = [_choose(row, possible, chosen(row), "selected by where=") for row, possible in rows]
    elif folds(norm):
        why = f"{norm} folds away, so no other norm should stay"
        plan.rows = [_choose(row, possible, row.site != "linear_bn", why) for row, possible in rows]
    if not plan.rows:
        plan.notes.append("the model has no norm of the LayerNorm family")
    return plan, trace


def _try(model: nn.Module, found: list[Found], input_size: Any, plan: SwapPlan) -> tracing.Trace | None:
    if not found:
        return None
    x = tracing.sample_input(model, input_size)
    if x is None:
        plan.notes.append(
            "input size unknown (pass input_size=): layouts and prefix tokens are those the modules suggest, not observed"
        )
        return None
    try:
        trace = tracing.run(model, found, x)
    except Exception as error:  # anyone's model may raise anything; the plan goes on without what a run would have shown
        if input_size is not None:
            raise ValueError(f"{type(model).__name__} could not be run on input of shape {tuple(x.shape)}: {error}") from error
        plan.notes.append(
            f"could not be run on input of shape {tuple(x.shape)} ({type(error).__name__}: {error}); pass input_size="
        )
        return None
    plan.input_size, plan.first = tuple(x.shape[1:]), trace.first
    return trace


def _choose(row: SwapRow, possible: bool, chosen: bool, why: str) -> SwapRow:
    if chosen and possible and row.action != "swap":
        return replace(row, action="swap", reason=f"{why} ({row.reason})")
    if not chosen and row.action == "swap":
        return replace(row, action="keep", reason="not selected by where=")
    return row


@dataclass
class _Seen:
    """What the calls of one norm have in common."""

    layout: Layout
    grid: Grid | None
    prefix: int
    ndim: int


class _Trouble(Exception):
    """Why a norm cannot be swapped."""


class _Planner:
    def __init__(self, model: nn.Module, plan: SwapPlan, found: list[Found], trace: tracing.Trace | None) -> None:
        self.model, self.plan, self.trace = model, plan, trace
        self.causal = causal_modules(model) if mixes_tokens(plan.norm) else {}
        self.prefix = static_prefix(model)
        self.is_image = any(isinstance(module, nn.Conv2d | nn.Unfold) for module in model.modules())
        self.checked: dict[Any, str] = {}
        self.disorder = ""
        blocks = [item.depth for item in found if item.depth is not None]
        self.blocks = max(blocks) + 1 if blocks else 0
        self.last_block_row = max((i for i, item in enumerate(found) if item.depth is not None), default=-1)
        self.first_block_row = min((i for i, item in enumerate(found) if item.depth is not None), default=0)
        self.position = {item.path: i for i, item in enumerate(found)}

    def row(self, item: Found) -> tuple[SwapRow, bool]:
        """The row of one norm, and whether `where` may choose it against its default."""
        calls = self.trace.calls[item.path] if self.trace is not None else []
        self._use_calls(item, calls)
        row = SwapRow(
            item.path,
            "BatchNorm1d" if item.site == "linear_bn" else type(item.module).__name__,
            "refuse",
            "",
            item.site,
            item.depth,
            item.old.dim,
            1,
            "channels_first" if item.old.channels_first else "tokens",
            0,
            int(self.plan.norm_options.get("ndim", 2)),
            also=item.also,
        )
        try:
            self._check_old(item, calls)
            seen = self._look(item, calls)
        except _Trouble as trouble:
            row.reason = str(trouble)
            return row, False
        row.layout, row.grid, row.num_prefix_tokens, row.ndim = seen.layout, seen.grid, seen.prefix, seen.ndim
        row.action, row.reason = self._default(item, calls)
        row.heads, heads_reason, fits = self._heads(item)
        if heads_reason:
            row.reason += f"; {heads_reason}"
        if not fits and row.action == "swap":
            row.action = "refuse"
        return row, True

    def _use_calls(self, item: Found, calls: list[tracing.Call]) -> None:
        """What only a run shows: a norm inside an attention that stands in front of it, or one with an unusual name."""
        if not calls:
            return
        if item.place == "inside" and item.block and all(call.front_of for call in calls):
            item.place = "block"
        elif item.place == "block" and item.site == "other" and calls[0].next in ("attn", "mlp"):
            item.site = "attn" if calls[0].next == "attn" else "mlp"
        elif item.place == "block" and item.site == "mlp" and calls[0].next == "norm":
            item.site = "other"  # named like the MLP's, but another norm runs before the MLP does

    def _check_old(self, item: Found, calls: list[tracing.Call]) -> None:
        if item.old.trouble:
            raise _Trouble(item.old.trouble)
        if mixes_tokens(self.plan.norm):
            why = "causal=True" if self.plan.causal else causal_reason(item.path, item.block, self.causal)
            if why:
                raise _Trouble(f"{self.plan.norm} mixes tokens, so a token would see later ones ({why})")
        if any(call.is_ln is False and not call.is_ln_first for call in calls):
            raise _Trouble(
                f"its output is not that of {'LayerNorm' if item.old.kind == 'ln' else 'RMSNorm'}: it does something else too"
            )

    def _look(self, item: Found, calls: list[tracing.Call]) -> _Seen:
        """Layout, grid and prefix tokens: those of every call, which have to agree."""
        norm, image = self.plan.norm, self.trace.image if self.trace is not None else None
        ndim = int(self.plan.norm_options.get("ndim", 2))
        if not calls:
            layout: Layout = "channels_first" if item.old.channels_first else "tokens"
            if norm in NEED_GRID and not self.is_image and "ndim" not in self.plan.norm_options:
                raise _Trouble(
                    "nothing says whether its tokens are an image or a sequence: pass input_size= or norm_options={'ndim': 1}"
                )
            return _Seen(layout, None, 0 if layout == "channels_first" else self.prefix, ndim)
        views = {}
        for call in calls:
            view = self._view(item, call, image, ndim)
            views[view.layout, view.prefix, view.ndim] = view
        if len(views) > 1:
            raise _Trouble(f"is called in different ways: {', '.join(str(call.shape) for call in calls)}")
        view = next(iter(views.values()))
        if norm in NEED_GRID and view.ndim == 2 and view.grid is not None:
            self._check_order(item, view)
        return view

    def _view(self, item: Found, call: tracing.Call, image: Grid | None, ndim: int) -> _Seen:
        shape, mixes = call.shape, mixes_tokens(self.plan.norm)
        if len(shape) == 2:
            raise _Trouble(f"sees {shape[0]} single vectors {shape}, not tokens")
        if len(shape) not in (3, 4):
            raise _Trouble(f"sees {shape}, neither tokens nor a map of tokens")
        if len(shape) == 4:
            first = bool(call.is_ln_first and not call.is_ln) if call.is_ln is not None else item.old.channels_first
            size = (shape[2], shape[3]) if first else (shape[1], shape[2])
            if mixes:
                if item.place == "per head":
                    raise _Trouble(f"normalises queries or keys {shape} of each head, which lie on no grid")
                known = {*call.maps, *(half for grid in call.maps for half in halvings(grid))}
                if shape[0] != tracing.BATCH or size not in known:
                    raise _Trouble(
                        f"sees {shape}, which is not a feature map of the image: tokens are cut into windows or heads"
                    )
                if size == (1, 1):
                    raise _Trouble("sees one cell only, there is nothing to mix")
            return _Seen("channels_first" if first else "map", size, 0, 2)
        if image is None:
            batch_first = shape[0] == tracing.BATCH
            if self.plan.norm in ONLY_2D:
                raise _Trouble(f"{self.plan.norm} is made for images, this is a sequence")
            if not batch_first and shape[1] != tracing.BATCH:
                raise _Trouble(f"sees {shape} for {tracing.BATCH} sequences")
            return _Seen("tokens" if batch_first else "sequence_first", None, 0, 1)
        layout: Layout = "tokens"
        batch, tokens = shape[:2]
        if batch != tracing.BATCH and tokens == tracing.BATCH:
            layout, batch, tokens = "sequence_first", tokens, batch
        if not mixes:
            return _Seen(layout if batch == tracing.BATCH else "tokens", None, 0, ndim)
        if batch != tracing.BATCH:
            raise _Trouble(
                f"sees {shape} for {tracing.BATCH} images: tokens are cut into windows or heads, and their place is lost"
            )
        if tokens == 1:
            raise _Trouble("sees one token only, there is nothing to mix")
        if self.plan.norm not in NEED_GRID or ndim == 1:
            return _Seen(layout, None, self.prefix if ndim == 1 and self.plan.norm in NEED_GRID else 0, ndim)
        try:
            match = tracing.grid_and_prefix(tokens, call.maps, self.prefix)
        except MissingGridError as error:
            raise _Trouble(str(error)) from None
        if match is None and not call.maps:
            match = self._patches(tokens, image)
        if match is None:
            maps = ", ".join(spelled(grid) for grid in dict.fromkeys(call.maps)) or "none"
            raise _Trouble(f"sees {tokens} tokens, which no feature map of the model explains (maps so far: {maps})")
        return _Seen(layout, match[0], match[1], 2)

    def _patches(self, tokens: int, image: Grid) -> tuple[Grid, int] | None:
        """A patch embedding without a convolution: square patches, to be confirmed by `_check_order`."""
        for prefix in dict.fromkeys((self.prefix, 0, 1)):
            grid = tracing.patch_grid(tokens - prefix, image) if tokens > prefix else None
            if grid is not None and next(self.model.parameters()).device != torch.device("meta"):
                self.plan.patch = (image[0] // grid[0], image[1] // grid[1])
                return grid, prefix
        return None

    def _check_order(self, item: Found, view: _Seen) -> None:
        """Tokens must lie on the grid row by row; the first norm that sees a grid answers for the others that see it."""
        assert self.trace is not None and view.grid is not None
        if self.disorder:
            raise _Trouble(self.disorder)
        key = (view.grid, view.prefix, view.layout, self.trace.tensors[item.path].shape)
        if key not in self.checked:
            first = not self.checked
            self.checked[key] = self._order_trouble(item, view, least=0.1 if first else 0.01)
            if first and self.checked[key]:
                self.disorder = self.checked[key]  # what follows is made of the same tokens
        if self.checked[key]:
            raise _Trouble(self.checked[key])

    def _order_trouble(self, item: Found, view: _Seen, least: float) -> str:
        assert self.trace is not None and view.grid is not None
        rows, cols = view.grid
        if view.layout == "sequence_first" or math.prod(view.grid) <= 4:
            return ""
        cells = [(rows // 4, 3 * cols // 4), (3 * rows // 4, cols // 4)]
        places = tracing.place_of(self.trace, item.path, view.grid, view.prefix, cells)
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

    def _default(self, item: Found, calls: list[tracing.Call]) -> tuple[Any, str]:
        if item.site == "linear_bn":
            return "refuse", (
                "a BatchNorm behind a linear layer, no LayerNorm in front of it; "
                "where={'site': 'linear_bn'} swaps it all the same"
            )
        if self.trace is not None and not calls:
            return "keep", "is never called in a forward pass"
        if item.place == "block" and item.site in ("attn", "mlp"):
            return "swap", f"belongs to the {'attention' if item.site == 'attn' else 'MLP'} of {item.block or 'the block'}"
        if item.place == "block":
            return (
                "keep",
                f"stands in {item.block or 'the block'}, in front of no attention or MLP that was recognised; where= swaps it",
            )
        if item.place == "per head":
            return "keep", "normalises queries or keys of each head"
        if item.place == "inside":
            what = "attention (keys and values at lower resolution)" if item.site == "attn" else "the MLP (its hidden channels)"
            return "keep", f"stands inside {what}"
        if item.place == "embedding":
            return "keep", "part of the patch embedding: no attention has split its channels into heads yet"
        if item.place == "merging":
            return "keep", "part of downsampling: its channels are those of neighbours side by side, not of heads"
        if not self.blocks:
            return "keep", "no attention found in the model, so no heads"
        if self.position[item.path] > self.last_block_row:
            return "keep", "behind the last block: it prepares the class token or the average for the classifier"
        if self.position[item.path] < self.first_block_row:
            return "keep", "in front of the first block"
        return "keep", "between stages, outside the blocks"

    def _heads(self, item: Found) -> tuple[int, str, bool]:
        """(heads, remark, whether they are the model's own)."""
        given = self.plan.norm_options.get("heads")
        if given is not None:
            return int(given), "", True
        if self.plan.norm not in USE_HEADS:
            return item.heads if item.heads and item.old.dim % item.heads == 0 else 1, "", True
        if item.heads is None:
            return 1, "no attention beside it: heads=1 if it is swapped", False
        if item.old.dim % item.heads:
            return (
                1,
                f"{item.old.dim} channels cannot be split into the {item.heads} heads of {item.attention}: heads=1 if swapped",
                False,
            )
        return item.heads, f"{item.heads} heads of {item.attention}", True
