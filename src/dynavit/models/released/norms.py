"""Norms of the DTN and UN releases: which of ours they are, and their parameters' names."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...norms.factory import norm_class_of

Transform = Callable[[Tensor], Tensor]

# The release's norms: ours, with the options that make it the same.
NORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "layer": ("ln", {}),
    "dtn": ("dtn_released", {}),
    "dtn_var": ("dtn_released", {"only_var": True}),
    "dtn_pool": ("dtn_released", {}),
    "batch": ("bn", {}),
    "power": ("power", {"backward": "dtn", "warmup": 3000}),
    "insnorm": ("in", {"unbiased": True}),
    "gnorm": ("gn", {}),
    "scale": ("scale", {"per_channel": True}),
    # A checkpoint does not show these options; they are as the authors trained T2T-ViT.
    "un": ("un", {"official": True, "filtration": True, "warmup": 4000}),
}
ALIKE = ("layer", "insnorm", "gnorm")  # a weight and a bias each: nothing in a checkpoint tells them apart

# Keys below a norm that give it away, most telling first.
MARKS = {
    "mean_norm_weight": "dtn",
    "var_norm_weight": "dtn_var",
    "bn.running_mean": "batch",
    "running_phi": "power",
    "scale": "scale",
    "buffer_x2": "un",
}


def as_is(value: Tensor) -> Tensor:
    return value


def _position(value: Tensor) -> Tensor:
    """Columns (w0, w1, w2) of (dx, dy, d^2), source to target -> [a_0, a_1, a_2] of (d^2, dx, dy), target to source."""
    if value.dim() != 2 or value.shape[1] != 3:
        return value  # its shape will be reported
    return torch.stack([value[:, 2], -value[:, 0], -value[:, 1]], 1)


# Our name below a norm -> the release's, and how the value becomes ours. Others are called the same.
_KEYS: dict[str, dict[str, tuple[str, Transform]]] = {
    "dtn_released": {
        "mean_logit": ("mean_norm_weight", as_is),
        "var_logit": ("var_norm_weight", as_is),
        "position": ("pos_proj.weight", _position),
    },
    "bn": {"running_mean": ("bn.running_mean", as_is), "running_var": ("bn.running_var", as_is)},
    "power": {
        "running_phi": ("running_phi", torch.flatten),  # (1, c, 1, 1)
        "ema_gz": ("ema_gz", torch.flatten),
        "iters": ("iters", torch.squeeze),  # (1,)
    },
    "scale": {"weight": ("scale", as_is)},
}


def key_below(owner: nn.Module, name: str) -> tuple[str, Transform] | None:
    """The release's name for the parameter `name` of a norm, and how its value becomes ours; None if it is called the same."""
    for norm, keys in _KEYS.items():
        if isinstance(owner, norm_class_of(norm)) and name in keys:
            return keys[name]
    return None
