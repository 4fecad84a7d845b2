"""Cost of each normaliser: time, memory for backward and arithmetic, relative to nn.LayerNorm in the same run."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..common.files import write_json
from ..common.registry import nearest_match_error
from ..engine.device import best_device, usable_device
from ..norms import list_norms
from ..norms.annealed import AnnealedNorm
from ..norms.dtn.gpu.gate import obstacle
from ..norms.dtn.native.build import native_kernel_available
from ..norms.seat import Seat, misfit, seat_norm
from .device import CPU
from .flops import count_macs
from .machine import describe_machine
from .memory import saved_bytes
from .timing import Timing, time_interleaved

BASELINE = "nn.LayerNorm"


@dataclass(frozen=True)
class Shape:
    """Tokens as a norm inside a model sees them."""

    batch: int
    grid: tuple[int, ...]
    dim: int
    heads: int

    def __str__(self) -> str:
        grid = "x".join(map(str, self.grid)) if len(self.grid) == 2 else f"T={self.grid[0]}"
        return f"B={self.batch}, {grid}, C={self.dim}, H={self.heads}"


SHAPES = {
    "A": Shape(8, (14, 14), 432, 9),  # ViT-S* at 224 px
    "B": Shape(64, (8, 8), 192, 4),  # a tiny ViT on 32-px images
    "C": Shape(8, (56, 56), 64, 1),  # the first stage of a pyramid, not pooled
    "D": Shape(4, (2000,), 512, 8),  # ListOps
}
_SWEEP_TOKENS, _SWEEP_GRIDS = 2 * 112 * 112, (7, 14, 28, 56, 112)


@dataclass(frozen=True)
class Row:
    """One normaliser at one shape. Ratios are to nn.LayerNorm: (median over rounds, lower quartile, upper quartile)."""

    shape: str
    norm: str
    options: dict[str, Any]
    forward_ms: float
    forward_ratio: tuple[float, float, float]
    training_ms: float
    training_ratio: tuple[float, float, float]
    saved_bytes: int
    saved_ratio: float
    gmacs: float
    parameters: int


@dataclass(frozen=True)
class SweepRow:
    """Forward and backward of DTN on one grid, always with the same number of tokens in the batch."""

    grid: tuple[int, int]
    batch: int
    init: str
    nanoseconds_per_token: float
    ratio: tuple[float, float, float]


@dataclass(frozen=True)
class NormBench:
    """Everything that was measured in one run."""

    machine: dict[str, Any]
    rows: list[Row]
    sweep: list[SweepRow] = field(default_factory=list)

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        header = ["norm", "forward", "forward + backward", "quartiles", "kept for backward", "GMACs", "parameters"]
        tables = [
            (
                f"{name}: {SHAPES[name]}, on {self.machine['device']}; times {BASELINE}'s "
                f"({_baseline(rows).forward_ms:.2f} ms forward, {_baseline(rows).training_ms:.2f} ms with backward)",
                header,
                [_cells(row) for row in rows],
            )
            for name in dict.fromkeys(row.shape for row in self.rows)
            if (rows := [row for row in self.rows if row.shape == name])
        ]
        if self.sweep:
            tables.append(self._sweep_table())
        return tables

    def _sweep_table(self) -> tuple[str, list[str], list[list[str]]]:
        smallest = {row.init: row for row in reversed(self.sweep)}
        cells = []
        for row in self.sweep:
            first = smallest[row.init]
            growth = row.nanoseconds_per_token / first.nanoseconds_per_token
            root = math.sqrt(math.prod(row.grid) / math.prod(first.grid))
            grid = "x".join(map(str, row.grid))
            cells.append(
                [grid, row.init, f"{row.nanoseconds_per_token:.0f} ns", f"{growth:.2f}", f"{root:.2f}", f"{row.ratio[0]:.1f}x"]
            )
        title = f"dtn, forward + backward, C=64, H=1, {_SWEEP_TOKENS} tokens in every batch: how cost grows with the grid"
        return title, ["grid", "init", "per token", "growth", "growth of sqrt(T)", f"times {BASELINE}'s"], cells


def run_norm_bench(
    norms: list[str] | None = None,
    shapes: list[str] | None = None,
    repeats: int = 30,
    sweep: bool = True,
    device: str | None = None,
    threads: int | None = None,
    out: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> NormBench:
    """Measure normalisers against nn.LayerNorm, interleaved in one process; DTN with both of its initialisations."""
    where = best_device() if device is None else usable_device(device)
    chosen = list_norms() if norms is None else norms
    for name in chosen:
        if name not in list_norms():
            raise nearest_match_error("norm", name, list_norms())
    for name in shapes or []:
        if name not in SHAPES:
            raise nearest_match_error("shape", name, SHAPES)
    if repeats < 1:
        raise ValueError(f"repeats counts rounds of measurement, at least 1; got {repeats}")
    tell = progress or (lambda message: None)
    threads_before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        machine = describe_machine(where) | {"repeats": repeats} | dtn_kernels(where)
        rows = []
        for name in SHAPES if shapes is None else shapes:
            tell(f"shape {name}: {SHAPES[name]}")
            rows += _measure_shape(name, chosen, repeats, where)
        growth = _measure_sweep(repeats, where, tell) if sweep and "dtn" in chosen else []
    finally:
        torch.set_num_threads(threads_before)
    result = NormBench(machine, rows, growth)
    if out is not None:
        write_json(out, asdict(result))
    return result


def dtn_kernels(device: torch.device) -> dict[str, Any]:
    """Which kernels DTN has on this device, for the record."""
    return {"native_dtn_kernel": native_kernel_available(), "triton_dtn_kernel": device.type == "cuda" and not obstacle()}


def _measure_shape(name: str, norms: list[str], repeats: int, device: torch.device) -> list[Row]:
    shape = SHAPES[name]
    layers: dict[str, tuple[nn.Module, dict[str, Any]]] = {BASELINE: (nn.LayerNorm(shape.dim, device=device), {})}
    for norm in norms:
        for options in _variants(norm, shape):
            label = norm if len(_variants(norm, shape)) == 1 else f"{norm} ({options['init']})"
            layers[label] = (_layer(norm, shape, **options).to(device), options)
    x = random_tokens(shape, device)
    forward, training = _time({label: layer for label, (layer, _) in layers.items()}, x, repeats)
    base = layers[BASELINE][0]
    base_bytes = saved_bytes(partial(base, x), base)
    return [
        Row(
            name,
            label,
            options,
            1e3 * forward[label].median,
            forward[label].ratio(forward[BASELINE]),
            1e3 * training[label].median,
            training[label].ratio(training[BASELINE]),
            kept := saved_bytes(partial(layer, x), layer),
            kept / base_bytes,
            count_macs(layer, x) / 1e9,
            sum(parameter.numel() for parameter in layer.parameters()),
        )
        for label, (layer, options) in layers.items()
    ]


def _layer(norm: str, shape: Shape, **options: Any) -> nn.Module:
    """How much of DTN's kernel can be skipped depends on its numbers, so a random init must be the same in every run.

    With this seed the truncated normal leaves nothing to skip at 56 x 56: the dearest case.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        layer = seat_norm(norm, Seat(shape.dim, shape.heads, ndim=len(shape.grid)), options)
    if isinstance(layer, AnnealedNorm):
        layer.set_progress(1, 2)  # both of its norms at work, as in most of a run; at first it is LayerNorm alone
    if layer.needs_grid:
        layer.register_forward_pre_hook(lambda module, args: (*args, shape.grid))
    return layer


def _variants(norm: str, shape: Shape) -> list[dict[str, Any]]:
    """Options under which a norm is measured at a shape: DTN from both inits; the released DTN pools large grids."""
    one_dimensional = len(shape.grid) == 1
    if norm == "dtn":
        extra = {"ndim": 1} if one_dimensional else {}
        return [{"init": init, **extra} for init in ("local", "trunc_normal")]
    if misfit(norm, len(shape.grid)):
        return []
    return [{"pool": max(1, shape.grid[0] // 14)}] if norm == "dtn_released" else [{}]


def _measure_sweep(repeats: int, device: torch.device, tell: Callable[[str], None]) -> list[SweepRow]:
    rows = []
    for side in _SWEEP_GRIDS:
        shape = Shape(_SWEEP_TOKENS // side**2, (side, side), 64, 1)
        tell(f"sweep: {shape}")
        layers: dict[str, nn.Module] = {BASELINE: nn.LayerNorm(shape.dim, device=device)}
        layers |= {init: _layer("dtn", shape, init=init).to(device) for init in ("local", "trunc_normal")}
        _, training = _time(layers, random_tokens(shape, device), max(1, repeats // 3))
        rows += [
            SweepRow(
                (side, side),
                shape.batch,
                init,
                1e9 * training[init].median / (shape.batch * side**2),
                training[init].ratio(training[BASELINE]),
            )
            for init in ("local", "trunc_normal")
        ]
    return rows


def _time(layers: dict[str, nn.Module], x: Tensor, repeats: int) -> tuple[dict[str, Timing], dict[str, Timing]]:
    """Forward alone without autograd, and forward with the gradients of the input and all parameters."""
    cotangent = torch.randn_like(x)

    def forward(layer: nn.Module) -> None:
        with torch.no_grad():
            layer(x)

    def training(layer: nn.Module) -> None:
        torch.autograd.grad(layer(x), [x, *layer.parameters()], cotangent)

    forward_calls = {name: partial(forward, layer) for name, layer in layers.items()}
    training_calls = {name: partial(training, layer) for name, layer in layers.items()}
    return time_interleaved(forward_calls, repeats, device=x.device), time_interleaved(training_calls, repeats, device=x.device)


def random_tokens(shape: Shape, device: torch.device = CPU) -> Tensor:
    """The same on every device."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape.batch, math.prod(shape.grid), shape.dim, generator=generator).to(device).requires_grad_()


def _baseline(rows: list[Row]) -> Row:
    return next(row for row in rows if row.norm == BASELINE)


def _cells(row: Row) -> list[str]:
    middle, low, high = row.training_ratio
    return [
        row.norm,
        f"{row.forward_ratio[0]:.2f}x",
        f"{middle:.2f}x",
        f"{low:.2f}-{high:.2f}",
        f"{row.saved_ratio:.2f}x",
        f"{row.gmacs:.4f}" if row.gmacs else "-",
        f"{row.parameters}",
    ]
