"""Attention: its mean distance per head, and its maps over the images that are shown."""

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

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
            return  # only the class token is a query, and it has no place on the image
        self.grids[call.path] = call.grid
        self.distances.setdefault(call.path, []).append(mean_attention_distance(call.weights, call.queries, call.keys).cpu())

    def attention_distance(self) -> dict[str, Any] | None:
        """None if only class tokens are queries."""
        if not self.distances:
            return None
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
    """To be called in one pass over the images that are shown: the last layer head by head, and all layers before it.

    Rollout goes back as far as tokens lie on the last grid: over the last stage of a pyramid, the last exit of a cascade.
    """

    def __init__(self, class_token: bool) -> None:
        self.class_token = class_token  # the answer is read from one
        self.calls: list[AttentionCall] = []  # the latest ones, all on one grid

    def __call__(self, call: AttentionCall) -> None:
        if self.calls:
            before = self.calls[-1]
            if (before.grid, _exit(before)) != (call.grid, _exit(call)) or _prefix(before) > _prefix(call):
                self.calls.clear()
        self.calls.append(call)

    def attention_maps(self) -> dict[str, Any]:
        call = self.calls[-1]
        pools = bool(call.queries.isnan().all())
        layers = [_whole(each) for each in self.calls]
        heads = [_whole(replace(call, weights=weights[:, :, None])) for weights in call.weights.unbind(2)]
        maps, rolled = torch.stack([self._attended(head) for head in heads], 1), self._attended(rollout(layers))
        of = "class token" if self.class_token else "query that pools the tokens" if pools else "mean of all tokens"
        return {
            "of": of,
            "maps": [
                {"path": call.path, "shown": number, "grid": list(call.grid), "values": values}
                for number, values in enumerate(maps.tolist())
            ],
            "rollout": [
                {"shown": number, "grid": list(call.grid), "values": values} for number, values in enumerate(rolled.tolist())
            ],
        }

    def _attended(self, attention: Tensor) -> Tensor:
        """(b, t, t) -> (b, rows * cols): attention of the tokens that the answer is read from."""
        call, prefix = self.calls[-1], _prefix(self.calls[-1])
        if self.class_token or call.queries.isnan().all():
            return attended(attention, prefix)
        return attended(attention[:, prefix:, prefix:], 0)  # without registers


def classifies_by_token(model: nn.Module) -> bool:
    """Whether the answer is read from a class token. Registers are none, and average pooling does not read it."""
    names = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
    pool = getattr(model, "global_pool", "token")
    return bool(names & {"cls_token", "class_token", "cls_tokens"}) and pool not in ("avg", "avgmax", "max", "map")


def _whole(call: AttentionCall) -> Tensor:
    return whole_attention(call.weights, call.queries, call.keys, call.grid, _prefix(call))


def _exit(call: AttentionCall) -> str:
    """The path of the exit of a cascade that this belongs to, or ""; exits may share a grid."""
    found = re.match(r"exits\.\d+", call.path)
    return found[0] if found else ""


def _prefix(call: AttentionCall) -> int:
    """The number of tokens in front that have no place on the image; 0 in windows, where those are padding."""
    if len(call.queries) > 1:
        return 0
    return int(call.queries[0, :, 0].isnan().long().cumprod(0).sum())
