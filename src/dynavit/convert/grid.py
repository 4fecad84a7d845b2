"""The grid of the tokens on its way to a swapped norm, whose caller only passes tokens.

A token count does not tell the grid: 196 tokens may be 14x14 or 7x28. The convolutions that turned the image into feature maps
do. So hooks on these modules write down the size of each map, and a norm that receives T tokens takes the map of T cells.

* **Forward.** Sizes are written on a page that belongs to one call of the model, in one thread. Nothing is kept on modules, so
  replicas in threads do not disturb each other. The first convolution starts a new page, also when `forward_features` is called
  instead of the model.
* **Recomputation** (activation checkpointing) runs parts of the model inside a backward pass, when that page is gone, perhaps
  with another forward pass in between. Therefore the inputs of swapped norms and of the modules around them are remembered
  by their storage, which the checkpoint keeps alive: the recomputed part finds its grid from its own input. If that fails
  (activations were moved to another device, say), a token count that has only ever come with one grid still tells it.
* Otherwise the norm raises. It never assumes a square.
"""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

Grid = tuple[int, int]

FORWARD = -1  # the "backward pass" that a forward pass belongs to
MAP_MAKERS = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.Unfold)


class MissingGridError(RuntimeError):
    """A norm that needs positions received tokens whose grid is unknown."""


@dataclass(eq=False)
class Page:
    """The feature maps of one call of the model."""

    task: int  # the backward pass it runs in
    owner: Any = None  # the module whose call it is; None: opened by the first convolution
    given: Grid | None = None  # the grid itself, if it is known
    maps: list[Grid] = field(default_factory=list)  # of stems, patch embeddings and downsampling
    inner: list[Grid] = field(default_factory=list)  # of convolutions inside blocks

    def grid_of(self, tokens: int) -> Grid | None:
        """The map with that many cells. Maps outside blocks first; last, what halving a map's sides gives."""
        if self.given is not None:
            return self.given if math.prod(self.given) == tokens else None
        for maps in (self.maps, self.inner, [half for grid in self.maps for half in halvings(grid)]):
            found = {grid for grid in maps if math.prod(grid) == tokens}
            if len(found) == 1:
                return found.pop()
            if found:
                raise MissingGridError(
                    f"{tokens} tokens may lie on any of {' or '.join(map(spelled, sorted(found)))}, all of which are feature "
                    "maps of this forward pass. Give the grid: `with dynavit.convert.token_grid(rows, cols):`"
                )
        return None


def halvings(grid: Grid) -> Iterator[Grid]:
    """Grids that strided attention and unpadded merging make: sides halved, rounded up or down, again and again."""
    up = down = grid
    while max(up) > 1:
        up = ((up[0] + 1) // 2, (up[1] + 1) // 2)
        down = (max(down[0] // 2, 1), max(down[1] // 2, 1))
        yield up
        yield down


class _Thread(threading.local):
    """The pages of a thread's running calls, the innermost last. (torch.compile can read this, and no context variable.)"""

    def __init__(self) -> None:  # called in each thread
        self.pages: tuple[Page, ...] = ()


_here = _Thread()


@contextmanager
def token_grid(rows: int, cols: int) -> Iterator[None]:
    """Inside this block swapped norms take their tokens to lie on this grid.

    For parts of a model that are called by themselves: `with token_grid(7, 28): model.blocks(tokens)`.
    """
    before = _here.pages
    _here.pages = (*before, Page(_task(), owner=token_grid, given=(rows, cols)))
    try:
        yield
    finally:
        _here.pages = before


class Carrier:
    """The memory that the hooks of one model share. It holds no modules, so copies of the model get a carrier of their own."""

    def __init__(self, patch: Grid | None = None) -> None:
        self.patch = patch  # for patch embeddings without a convolution: the size of a patch in pixels
        self.seen: dict[int, set[Grid]] = {}  # every grid a token count ever came with
        self._bound: dict[Any, tuple[StorageWeakRef, Grid]] = {}  # by storage, offset and token count
        self._limit = 1024

    def __reduce__(self) -> Any:  # copies and pickles start afresh
        return Carrier, (self.patch,)

    def find(self, x: Tensor, prefix: int) -> Grid | None:
        """The grid of tokens x (b, prefix + rows * cols, c), or (b, m, n, c) with as many cells."""
        task, tokens = _task(), count_of(x) - prefix
        page = _current(task)
        if task == FORWARD:
            grid = page.grid_of(tokens) if page is not None else None
            if grid is None:
                grid = self.bound_to(x)
            return grid if grid is not None and math.prod(grid) == tokens else None
        for grid in (self.bound_to(x), page.grid_of(tokens) if page is not None else None):
            if grid is not None and math.prod(grid) == tokens:
                return grid
        seen = self.seen.get(tokens, set())
        return next(iter(seen)) if len(seen) == 1 else None

    def bind(self, x: Tensor, grid: Grid) -> None:
        """Remember the grid of x for as long as its memory lives."""
        if not _has_storage(x):
            return
        if len(self._bound) > self._limit:
            alive = {key: entry for key, entry in list(self._bound.items()) if not entry[0].expired()}
            self._bound, self._limit = alive, 2 * len(alive) + 1024
        storage = StorageWeakRef(x.untyped_storage())  # while we hold it, its address is not given to another storage
        self._bound[storage.cdata, x.storage_offset(), x.shape[1]] = (storage, grid)

    def bound_to(self, x: Tensor) -> Grid | None:
        if not _has_storage(x):
            return None
        entry = self._bound.get((x.untyped_storage()._cdata, x.storage_offset(), x.shape[1]))
        return None if entry is None or entry[0].expired() else entry[1]


@dataclass(eq=False)
class ModelHook:
    """Around the whole model: a page for each call."""

    carrier: Carrier

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        page = Page(_task(), owner=module)
        if self.carrier.patch is not None:
            image = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim() == 4), None)
            rows, cols = self.carrier.patch
            if image is not None and image.shape[2] % rows == 0 and image.shape[3] % cols == 0:
                page.maps.append((image.shape[2] // rows, image.shape[3] // cols))
        _here.pages = (*_here.pages, page)

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        _close(module)


@dataclass(eq=False)
class MapHook:
    """On a module that makes feature maps: write their size down."""

    carrier: Carrier
    first: bool = False  # the image enters the model here
    inside: bool = False  # inside a block with swapped norms

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        grid = map_size(module, args, output)
        if grid is None:
            return
        task = _task()
        page = _current(task)
        if page is None or (self.first and page.owner is None):
            page = Page(task)
            _here.pages = (*(p for p in _here.pages if p.owner is not None), page)
        elif self.first and page.given is None and self.carrier.patch is None:
            page.maps.clear()
            page.inner.clear()
        (page.inner if self.inside else page.maps).append(grid)


@dataclass(eq=False)
class ScopeHook:
    """On the modules around swapped norms: the grid of a recomputed part is found from the part's own input."""

    carrier: Carrier
    prefixes: tuple[int, ...]  # of the norms inside
    axes: tuple[int, ...] = (3,)  # of tokens: 4 where they are cut into blocks

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = _tokens_in((*args, *kwargs.values()), self.axes)
        if x is None or torch.compiler.is_compiling():
            return
        task = _task()
        if task != FORWARD:
            grid = self.carrier.bound_to(x)
            if grid is not None:
                _here.pages = (*_here.pages, Page(task, owner=module, given=grid))
            return
        page = _current(task)
        for prefix in self.prefixes:
            grid = page.grid_of(count_of(x) - prefix) if page is not None else None
            if grid is not None:
                self.carrier.bind(x, grid)
                return

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or _task() == FORWARD:
            return
        page = _close(module)
        y = _tokens_in(output if isinstance(output, tuple) else (output,), self.axes)
        x = _tokens_in(args, self.axes)
        if page is not None and page.given is not None and x is not None and y is not None and count_of(y) == count_of(x):
            self.carrier.bind(y, page.given)  # the next block of the recomputed part starts from here


def attach(model: nn.Module, carrier: Carrier, norms: dict[str, tuple[int, int]], first: str | None) -> None:
    """Hooks for the norms at these paths (with their prefix tokens and axes); `first` is where the image enters."""
    detach(model)
    around: dict[str, set[tuple[int, int]]] = {}
    blocks: set[str] = set()
    for path, tokens in norms.items():
        parts = path.split(".")
        blocks.add(".".join(parts[:-1]))
        for depth in range(1, len(parts)):
            around.setdefault(".".join(parts[:depth]), set()).add(tokens)
    hook = ModelHook(carrier)
    model.register_forward_pre_hook(hook.before, with_kwargs=True)
    model.register_forward_hook(hook.after, always_call=True)
    for path, module in model.named_modules():
        if isinstance(module, MAP_MAKERS):
            inside = any(path.startswith(f"{block}.") for block in blocks if block)
            module.register_forward_hook(MapHook(carrier, first=path == first, inside=inside))
        elif path in around and path:
            prefixes, axes = (tuple(sorted(set(each))) for each in zip(*around[path], strict=True))
            scope = ScopeHook(carrier, prefixes, axes)
            module.register_forward_pre_hook(scope.before, with_kwargs=True)
            module.register_forward_hook(scope.after, always_call=True)


def detach(model: nn.Module) -> None:
    """Remove the hooks that `attach` has registered."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key, hook in list(hooks.items()):
                if isinstance(getattr(hook, "__self__", hook), ModelHook | MapHook | ScopeHook):
                    del hooks[key]
                    module._forward_pre_hooks_with_kwargs.pop(key, None)
                    module._forward_hooks_always_called.pop(key, None)


def spelled(grid: tuple[int, ...]) -> str:
    return "x".join(map(str, grid))


def _task() -> int:
    """The backward pass that is running in this thread, FORWARD if none."""
    return FORWARD if torch.compiler.is_compiling() else torch._C._current_graph_task_id()


def _current(task: int) -> Page | None:
    """The innermost page of this backward pass, or of the forward pass."""
    pages = _here.pages
    for index in range(len(pages) - 1, -1, -1):
        if pages[index].task == task:
            return pages[index]
    return None


def _close(module: nn.Module) -> Page | None:
    """Forget the page of this module and everything opened after it."""
    pages = _here.pages
    for index in range(len(pages) - 1, -1, -1):
        if pages[index].owner is module:
            _here.pages = pages[:index]
            return pages[index]
    return None


def _has_storage(x: Tensor) -> bool:
    """Whether x has memory to be known by: tensors that are traced, without values, or wrapped by torch.func have none."""
    if torch.compiler.is_compiling() or x.is_meta or type(x) not in (Tensor, nn.Parameter):
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(x)


def count_of(x: Tensor) -> int:
    """Tokens of a sample, prefix tokens too: (b, t, c) or (b, m, n, c)."""
    return x.shape[1] if x.dim() == 3 else x.shape[1] * x.shape[2]


def _tokens_in(values: Any, axes: tuple[int, ...]) -> Tensor | None:
    return next((x for x in values if isinstance(x, Tensor) and x.dim() in axes), None)


def map_size(module: nn.Module, args: tuple[Any, ...], output: Any) -> Grid | None:
    if not isinstance(module, nn.Unfold):
        return (output.shape[2], output.shape[3]) if isinstance(output, Tensor) and output.dim() == 4 else None
    if args[0].dim() != 4:
        return None
    options = ("kernel_size", "dilation", "padding", "stride")
    pairs = [getattr(module, name) for name in options]
    kernel, dilation, padding, stride = (pair if isinstance(pair, tuple | list) else (pair, pair) for pair in pairs)
    rows, cols = (
        (size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i, size in enumerate(args[0].shape[2:])
    )
    return rows, cols
