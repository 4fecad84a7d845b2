"""Where attention looks: its mean distance per head, and its maps over the images that are shown."""

from typing import Any

import torch
from torch import Tensor

from ..measures.attention_distance import local_heads, mean_attention_distance, uniform_distance
from ..measures.rollout import attended, rollout, whole_attention
from ..probes import AttentionCall


class AttentionRecorder:
    """To be called with every call of every attention, batch after batch."""

    def __init__(self) -> None:
        self.grids: dict[str, tuple[int, int]] = {}
        self.distances: dict[str, list[Tensor]] = {}  # (b, h) each

    def __call__(self, call: AttentionCall) -> None:
        if call.queries.isnan().all():
            return  # only the class token asks, and it is nowhere on the image
        self.grids[call.path] = call.grid
        self.distances.setdefault(call.path, []).append(mean_attention_distance(call.weights, call.queries, call.keys).cpu())

    def attention_distance(self) -> dict[str, Any]:
        layers, local = [], []
        finest = max(rows for rows, _ in self.grids.values())
        for path, distances in self.distances.items():
            grid = self.grids[path]
            distance, uniform = torch.cat(distances).nanmean(0), uniform_distance(grid)
            is_local = local_heads(distance, uniform)
            local.append(is_local)
            layers.append(
                {
                    "path": path,
                    "grid": list(grid),
                    "unit": finest / grid[0],
                    "distance": distance.tolist(),
                    "uniform": uniform,
                    "local": is_local.tolist(),
                }
            )
        return {"layers": layers, "local_share": float(torch.cat(local).double().mean())}


class AttentionMaps:
    """To be called in one pass over the images that are shown: the last layer head by head, and all that lead to it.

    Rollout goes back as far as tokens lie on the last grid: over the last stage of a pyramid, the last exit of a cascade.
    """

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []  # the latest ones, all on one grid

    def __call__(self, call: AttentionCall) -> None:
        if self.calls and (self.calls[-1].grid != call.grid or _prefix(self.calls[-1]) > _prefix(call)):
            self.calls.clear()
        self.calls.append(call)

    def attention_maps(self) -> dict[str, Any]:
        call = self.calls[-1]
        grid, prefix = call.grid, _prefix(call)
        heads = [
            attended(whole_attention(weights[:, :, None], call.queries, call.keys, grid, prefix), prefix)
            for weights in call.weights.unbind(2)
        ]
        layers = [whole_attention(each.weights, each.queries, each.keys, grid, _prefix(each)) for each in self.calls]
        maps, rolled = torch.stack(heads, 1), attended(rollout(layers), prefix)
        return {
            "of": "class token" if prefix else "mean of all tokens",
            "maps": [
                {"path": call.path, "shown": number, "grid": list(grid), "values": values}
                for number, values in enumerate(maps.tolist())
            ],
            "rollout": [
                {"shown": number, "grid": list(grid), "values": values} for number, values in enumerate(rolled.tolist())
            ],
        }


def _prefix(call: AttentionCall) -> int:
    """Tokens in front that are not on the image. In windows those are padding, and there are no others."""
    if len(call.queries) > 1:
        return 0
    return int(call.queries[0, :, 0].isnan().long().cumprod(0).sum())
