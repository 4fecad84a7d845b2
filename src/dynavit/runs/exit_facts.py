"""Facts about the exits of a run's model that a service needs: grid, GMACs, what is carried, the calibration curve.

They stand in the manifest of a bundle, and are found anew when a run is served.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..bench.exits import exit_gmacs
from ..bench.flops import count_macs
from ..deploy.serve.model import carried_bytes
from ..deploy.serve.torch_backend import TorchBackend
from ..models.cascade import Cascade
from .calibrate import read_calibration
from .subject import Subject


def describe_exits(model: nn.Module, input_size: Sequence[int]) -> list[dict[str, Any]]:
    """One dict for each exit, see `deploy.serve.model.StoredExit`; a model without exits has one."""
    like = next(model.parameters())
    image = torch.zeros(1, *input_size, device=like.device, dtype=like.dtype)
    with torch.no_grad():
        total = exit_gmacs(model, image) if isinstance(model, Cascade) else [count_macs(model, image) / 1e9]
    carried = carried_bytes(TorchBackend(model), tuple(input_size))
    exits: list[Any] = list(model.exits) if isinstance(model, Cascade) else []
    grids: list[list[int] | None] = [list(exit.grid) for exit in exits] or [None]
    own = [now - before for before, now in zip([0.0, *total], total, strict=False)]
    columns = zip(grids, own, total, carried, strict=True)
    return [{"grid": grid, "gmacs": each, "cumulative_gmacs": sums, "state_bytes": size} for grid, each, sums, size in columns]


def describe_calibration(subject: Subject) -> dict[str, Any] | None:
    """The stored curve, see `deploy.serve.model.StoredCalibration`; None without one for these weights and thresholds."""
    found, policy = read_calibration(subject.run), subject.policy()
    if found is None or policy is None or not found["curve"]:
        return None
    stored = found["policy"]
    same = [-1e9 if value is None else value for value in stored["thresholds"]] == [max(t, -1e9) for t in policy.thresholds]
    if stored.get("confidence_kind", policy.confidence_kind) != policy.confidence_kind:
        return None
    default = {"thresholds": stored["thresholds"], **{name: found[name] for name in ("gmacs", "accuracy", "shares")}}
    return {
        "data": f"{found['data']} {found['split']}",
        "n": found["samples"],
        "seed": None if policy.found_on is None else policy.found_on.seed,
        "points": found["curve"],
        "default": default if same else None,
    }
