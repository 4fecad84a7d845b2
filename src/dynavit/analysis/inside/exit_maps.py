"""Where each exit of a cascade looks in one image: attention rolled out to what it answers from, on the exit's own grid."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from ..probes import AttentionCall, observe
from ..probes.sites import unwrapped
from .attentions import AttentionMaps, classifies_by_token


def exit_maps(model: nn.Module, image: Tensor) -> list[dict[str, Any]]:
    """One dict for each exit of a model, about an image (1, c, height, width); a model without exits has one.

    {"grid": [rows, cols], "attention": (rows, cols) that sums to 1, "change": (rows, cols)}: `change` is how much each cell
    differs from the map of the exit before, brought to this grid; None at the first exit.
    """
    recorders: dict[int, AttentionMaps] = {}
    by_token = classifies_by_token(unwrapped(model))

    def record(call: AttentionCall) -> None:
        found = re.match(r"exits\.(\d+)\.", call.path)
        recorders.setdefault(int(found[1]) if found else 0, AttentionMaps(by_token))(call)

    observe(model, image, on_attention=record, on_left_out=lambda path, why: None)
    maps: list[dict[str, Any]] = []
    before: Tensor | None = None
    for exit in sorted(recorders):
        rolled = recorders[exit].attention_maps()["rollout"][0]
        rows, cols = rolled["grid"]
        now = torch.tensor(rolled["values"], dtype=torch.float64).reshape(rows, cols)
        change = None if before is None else (now - spread(before, (rows, cols))).abs().tolist()
        maps.append({"grid": [rows, cols], "attention": now.tolist(), "change": change})
        before = now
    return maps


def spread(values: Tensor, grid: tuple[int, int]) -> Tensor:
    """(rows, cols) of masses -> the same mass on another grid: a cell gives each new cell the share that lies in it."""
    down, across = (_shares(old, new).to(values.dtype) for old, new in zip(values.shape, grid, strict=True))
    return down @ values @ across.T


def _shares(old: int, new: int) -> Tensor:
    """(new, old): the part of an old cell that lies in a new one; columns sum to 1."""
    edges = torch.arange(new + 1, dtype=torch.float64) * old / new
    cells = torch.arange(old, dtype=torch.float64)
    upper = torch.minimum(edges[1:, None], cells + 1)
    return (upper - torch.maximum(edges[:-1, None], cells)).clamp_min(0)
