"""One forward pass that shows what each norm of a model receives.

Structure tells where a norm stands; only running the model tells whether it sees (b, t, c), windows, one class token or a
pooled vector, how many tokens stand in front of the grid, and whether tokens lie on it row by row at all. The last is
measured: the gradient of a token with respect to the image must be largest where the token is supposed to lie.
"""

import copy
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import grid as grids
from .sites import LocatedNorm, heads_of, is_attention, is_mlp

BATCH = 2
MOST_PREFIX_TOKENS = 8


@dataclass
class Call:
    """One call of one norm."""

    shape: tuple[int, ...]
    maps: list[grids.Grid]  # that the model had made so far
    front_of: str = ""  # the attention or MLP around the norm whose own input this is
    next: str = ""  # what ran next in the norm's block: "attn", "mlp", "norm" or ""
    is_ln: bool | None = None  # whether the output was that of the norm's kind over the last axis; None: not looked at
    is_ln_first: bool | None = None  # ... over axis 1


@dataclass
class Trace:
    """One run of a model, by paths of norms."""

    inputs: Tensor
    calls: dict[str, list[Call]]
    image: grids.Grid | None = None  # its size in pixels; None for sequences
    first: str | None = None  # the convolution that received the image
    outputs: list[Tensor] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)  # the input of each norm's first call


def sample_input(model: nn.Module, input_size: Any) -> Tensor | None:
    """A random image (or sequence) of the size that is given, or that the model names; None if the size is unknown."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    generator = torch.Generator().manual_seed(0)
    if isinstance(model, nn.TransformerEncoder | nn.TransformerEncoderLayer):
        layer = model.layers[0] if isinstance(model, nn.TransformerEncoder) else model
        width = layer.self_attn.embed_dim
        length = input_size if isinstance(input_size, int) else 10
        batch_first = layer.self_attn.batch_first
        shape: tuple[int, ...] = (BATCH, length, width) if batch_first else (length, BATCH, width)
    else:
        size = image_size(model, input_size)
        if size is None:
            return None
        shape = (BATCH, *size)
    if like.is_meta:
        return torch.empty(shape, device="meta", dtype=like.dtype)
    return torch.randn(shape, generator=generator).to(like.device, like.dtype)


def image_size(model: nn.Module, given: Any = None) -> tuple[int, int, int] | None:
    """(channels, rows, cols) of an image for the model: as given, or as the model says."""
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    configured = config.get("input_size") if isinstance(config, dict) else None
    candidates = (
        given,
        getattr(getattr(model, "patch_embed", None), "img_size", None),
        getattr(model, "img_size", None),
        getattr(model, "image_size", None),
        getattr(getattr(model, "config", None), "image_size", None),
        next(
            (module.img_size for module in model.modules() if isinstance(getattr(module, "img_size", None), int | tuple)), None
        ),
        configured,
    )
    convolution = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    channels = convolution.in_channels if convolution is not None else 3
    if channels > 4 and configured is not None:  # that convolution is not the first to run
        channels = configured[0]
    for size in candidates:
        if isinstance(size, int) and size > 0:
            return channels, size, size
        if isinstance(size, tuple | list) and len(size) in (2, 3) and all(isinstance(n, int) for n in size):
            return size[0] if len(size) == 3 else channels, int(size[-2]), int(size[-1])
    return None


def run(model: nn.Module, found: list[LocatedNorm], x: Tensor) -> Trace:
    """Run a copy of the model once in evaluation mode and look at every norm. Raises what the model raises.

    A copy, because some models keep things of a forward pass (LeViT its position biases).
    """
    model = copy.deepcopy(model).requires_grad_(False)
    inputs = x.clone().requires_grad_(not x.is_meta)
    trace = Trace(inputs, {item.path: [] for item in found}, image=(x.shape[2], x.shape[3]) if x.dim() == 4 else None)
    _Watcher(trace).attach(model, found)
    with torch.set_grad_enabled(not x.is_meta):
        output = model.eval()(inputs)
    trace.outputs = [t.detach() for t in tensors_in(output)]
    return trace


class _Watcher:
    """Hooks that write down the calls of one run."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.maps: list[grids.Grid] = []
        self.running: list[tuple[str, int]] = []  # attentions and MLPs being called, with the identity of their input
        self.latest: dict[str, Call] = {}  # the last norm call of each block, until something else runs there

    def attach(self, model: nn.Module, found: list[LocatedNorm]) -> None:
        for path, module in model.named_modules():
            if isinstance(module, grids.MAP_MAKERS):
                module.register_forward_hook(partial(self._made_map, path))
        for path, module in model.named_modules():
            attention = heads_of(module) is not None and is_attention(module)
            if path and (attention or is_mlp(path, module)):
                module.register_forward_pre_hook(partial(self._entered, path, "attn" if attention else "mlp"))
                module.register_forward_hook(self._left, always_call=True)
        for item in found:
            watched = item.path.removesuffix(".bn") if item.site == "linear_bn" else item.path
            model.get_submodule(watched).register_forward_hook(partial(self._normalised, item))

    def _made_map(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        size = grids.map_size(module, args, output)
        if size is not None:
            self.trace.first = path if self.trace.first is None else self.trace.first
            self.maps.append(size)

    def _entered(self, path: str, kind: str, module: nn.Module, args: Any) -> None:
        self.running.append((path, id(args[0]) if args else 0))
        for block in [b for b in self.latest if path.startswith(f"{b}.")]:
            self.latest.pop(block).next = kind

    def _left(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.running:
            self.running.pop()

    def _normalised(self, item: LocatedNorm, module: nn.Module, args: Any, output: Any) -> None:
        if not args or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
            return
        source = args[0]
        call = Call(tuple(source.shape), list(self.maps))
        call.front_of = next((path for path, key in self.running if key == id(source)), "")
        _compare_with_old(call, item, source, output)
        self.trace.calls[item.path].append(call)
        self.trace.tensors.setdefault(item.path, source)
        if item.block in self.latest:
            self.latest[item.block].next = "norm"
        self.latest[item.block] = call


def place_of(trace: Trace, tokens: Tensor, cells: list[grids.Grid]) -> list[tuple[float, grids.Grid]]:
    """For each cell (at most BATCH), the part of the image that the token there depends on.

    Args:
        tokens: the input of a norm as a map, (b, rows, cols, c).

    Returns (share, place): `place` is the cell of the image that moves the token most, `share` how much the image within one
    cell of the expected place moves it, relative to that. Empty if it cannot be measured.
    """
    if tokens.is_meta or not tokens.requires_grad or trace.image is None:
        return []
    grid = (tokens.shape[1], tokens.shape[2])
    total = tokens.new_zeros(())
    for sample, (row, col) in enumerate(cells):
        token = tokens[sample, row, col]
        # A random direction: the sum over channels of something LayerNorm has centred does not move.
        direction = torch.randn(token.shape, generator=torch.Generator().manual_seed(0)).to(token)
        total = total + (token * direction).sum()
    (slope,) = torch.autograd.grad(total, trace.inputs, retain_graph=True, allow_unused=True)
    if slope is None or not bool(slope.isfinite().all()):
        return []
    energy = F.adaptive_avg_pool2d(slope.double().square().sum(1, keepdim=True), grid)[:, 0]
    places = []
    for sample, (row, col) in enumerate(cells):
        most = float(energy[sample].max())
        if most > 0:
            near = energy[sample, max(row - 1, 0) : row + 2, max(col - 1, 0) : col + 2].max()
            at = int(energy[sample].flatten().argmax())
            places.append((float(near) / most, (at // grid[1], at % grid[1])))
    return places


def same_places(earlier: Tensor, later: Tensor) -> bool:
    """Whether tokens (b, m, n, c) still stand where they stood earlier: each depends on itself most, as residual paths make it.

    Much cheaper than the way back to the image, if little lies between the two.
    """
    picks = [(later.shape[1] // 3, 2 * later.shape[2] // 3), (2 * later.shape[1] // 3, later.shape[2] // 4)]
    total = torch.stack([later[sample, m, n].sin().sum() for sample, (m, n) in enumerate(picks)]).sum()
    (slope,) = torch.autograd.grad(total, earlier, retain_graph=True, allow_unused=True)
    if slope is None:
        return False
    energy = slope.double().square().sum(-1)
    return all(bool(energy[sample, m, n] > 0.5 * energy[sample].max()) for sample, (m, n) in enumerate(picks))


def grid_and_prefix(tokens: int, maps: list[grids.Grid], expected_prefix: int) -> tuple[grids.Grid, int] | None:
    """The map, and the number of tokens in front of it, that make up the count: 0, what the model says, then 1, 2, ..."""
    page = grids.Page(grids.FORWARD, maps=maps)
    halves = [half for size in maps for half in grids.halvings(size)]
    for candidates in (maps, halves):
        for prefix in dict.fromkeys((0, expected_prefix, *range(1, MOST_PREFIX_TOKENS + 1))):
            if tokens > prefix and any(math.prod(size) == tokens - prefix for size in candidates):
                size = page.grid_of(tokens - prefix)
                # Few cells and many extra tokens explain any count; a map should explain most of it.
                if size is not None and (prefix in (0, expected_prefix) or prefix * 4 <= tokens):
                    return size, prefix
    return None


def patch_grid(tokens: int, image: grids.Grid) -> grids.Grid | None:
    """The grid of square patches that cut the image into that many tokens, if there is one."""
    side = math.isqrt(image[0] * image[1] // tokens) if tokens else 0
    if side and image[0] % side == 0 and image[1] % side == 0 and (image[0] // side) * (image[1] // side) == tokens:
        return image[0] // side, image[1] // side
    return None


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = value.values()
    return [tensor for part in value for tensor in tensors_in(part)] if hasattr(value, "__iter__") else []


@torch.no_grad()
def _compare_with_old(call: Call, item: LocatedNorm, x: Tensor, y: Tensor) -> None:
    """Write down whether (x, y) is what LayerNorm or RMSNorm, whichever the norm seems to be, computes."""
    old = item.old
    if x.is_meta or old.trouble or old.kind not in ("ln", "rms"):
        return

    def same(axis: int) -> bool:
        if x.dim() <= 1 or x.shape[axis] != old.dim or y.shape != x.shape:
            return False
        wide = x.double().movedim(axis, -1)
        if old.kind == "ln":
            wide = wide - wide.mean(-1, keepdim=True)
        z = wide / (wide.square().mean(-1, keepdim=True) + old.eps).sqrt()
        if old.weight is not None:
            z = z * old.weight.double().flatten()
        if old.bias is not None and old.kind == "ln":
            z = z + old.bias.double().flatten()
        tolerance = 1e-3 if y.dtype in (torch.float32, torch.float64) else 3e-2
        return bool(torch.allclose(z.movedim(-1, axis), y.double(), rtol=tolerance, atol=tolerance))

    call.is_ln, call.is_ln_first = same(-1), x.dim() == 4 and same(1)
