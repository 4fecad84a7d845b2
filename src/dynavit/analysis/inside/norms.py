"""Effects of norms on tokens: magnitudes after the norm, the distance of the norm's mean to them, directions."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..measures.directions import compare_directions
from ..measures.magnitude import coefficient_of_variation, token_magnitudes
from ..measures.norm_mean import mean_coefficient, subtracted_mean, why_no_mean
from ..probes import NormCall

MOST_TOKENS = 400  # drawn as directions
LOW, HIGH = 0.1, 0.9  # of the tokens


@dataclass
class NormRecord:
    """Records of one norm so far. Prefix tokens are left out: they have no place on the image."""

    norm: nn.Module
    site: str
    heads: int
    grid: tuple[int, int]
    cv: list[Tensor] = field(default_factory=list)  # (b,) each
    cv_heads: list[Tensor] = field(default_factory=list)  # (b, h) each
    coefficients: list[Tensor] = field(default_factory=list)  # (b * t,) each


class NormRecorder:
    """To be called with every call of every norm, batch after batch."""

    def __init__(self) -> None:
        self.seen: dict[str, NormRecord] = {}

    def __call__(self, call: NormCall) -> None:
        seen = self.seen.setdefault(call.path, NormRecord(call.norm, call.site, call.heads, call.grid))
        patches = call.after[:, call.prefix :]
        seen.cv.append(coefficient_of_variation(token_magnitudes(patches, 1))[:, 0].cpu())
        seen.cv_heads.append(coefficient_of_variation(token_magnitudes(patches, call.heads)).cpu())
        mean = subtracted_mean(call.norm, call.before, call.grid)
        if mean is not None:
            seen.coefficients.append(mean_coefficient(call.before, mean)[:, call.prefix :].flatten().cpu())

    def magnitudes(self) -> list[dict[str, Any]]:
        return [
            {
                "path": path,
                "site": seen.site,
                "heads": seen.heads,
                "grid": list(seen.grid),
                "cv": float(torch.cat(seen.cv).mean()),
                "cv_heads": torch.cat(seen.cv_heads).mean(0).tolist(),
            }
            for path, seen in self.seen.items()
        ]

    def mean_variation(self) -> list[dict[str, Any]]:
        return [{"path": path, "site": seen.site, **self._coefficient(seen)} for path, seen in self.seen.items()]

    def _coefficient(self, seen: NormRecord) -> dict[str, Any]:
        values = torch.cat(seen.coefficients).double() if seen.coefficients else torch.empty(0)
        values = values[values.isfinite()]  # a token of zeros has no direction to compare with
        if not len(values):
            return {"coefficient": None, "low": None, "high": None, "why": why_no_mean(seen.norm)}
        low, high = torch.quantile(
            values[:: -(-len(values) // 100_000)], torch.tensor([LOW, HIGH], dtype=values.dtype)
        ).tolist()
        return {"coefficient": float(values.mean()), "low": low, "high": high}


class NormMaps:
    """To be called in one pass over the images that are shown: maps and directions of some norms."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.maps: list[dict[str, Any]] = []
        self.directions: list[dict[str, Any]] = []

    def __call__(self, call: NormCall) -> None:
        if call.path not in self.paths:
            return
        before, after = (tokens[:, call.prefix :] for tokens in (call.before, call.after))
        for number, values in enumerate(token_magnitudes(after, call.heads).tolist()):
            self.maps.append({"path": call.path, "shown": number, "grid": list(call.grid), "values": values})
        before, after = (tokens.flatten(0, 1) for tokens in (before, after))
        some = torch.linspace(0, len(before) - 1, min(MOST_TOKENS, len(before)), device=before.device).round().long()
        plane = compare_directions(before[some], after[some])
        self.directions.append({"path": call.path, **{name: _plain(value) for name, value in vars(plane).items()}})


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value
