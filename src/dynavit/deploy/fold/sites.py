"""The norms of a model, and the constant affine map per channel in each of them, y = scale * x + shift.

A norm that is such a map at evaluation says so by `affine_map()`; batch norms of torch and timm are such maps too. Of a norm
that looks at its tokens (LayerNorm, RMS, DTN, ...) only the weight and bias at its end are.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...convert.site_hook import SiteHook
from ...norms import Norm
from ...norms.contract import Grid

TOKEN_NORMS = (Norm, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
# Modules whose forwards only normalise. Batch norms with an activation hold it as a module, see `activations`.
KNOWN_TOKEN_NORMS = (Norm.__module__.rpartition(".")[0], "torch.nn.modules.normalization", "timm.layers.norm")
KNOWN_BATCH_NORMS = ("torch.nn.modules.batchnorm", "timm.layers.norm_act")


class Folded(nn.Module):
    """Stands where a norm was folded away, and returns its input."""

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            raise ValueError("this model was folded, which is exact only for tokens without a mask: use the unfolded model")
        return x


@dataclass
class Site:
    """One norm of a model."""

    paths: tuple[str, ...]  # more than one if the module is shared
    norm: nn.Module
    axis: int = -1  # of channels, in its input and output
    scale: Tensor | None = None  # (c) in float64; None: nothing of it is constant
    shift: Tensor | None = None  # None: it cannot have one, whatever it learns
    whole: bool = False  # nothing but the map
    trouble: str = ""  # why the map cannot be moved, whatever stands around it

    @property
    def path(self) -> str:
        return self.paths[0]


def without_affine(norm: nn.Module) -> nn.Module:
    """The same module, its weight and bias gone."""
    for name, gone in (("weight", None), ("bias", None), ("affine", False), ("elementwise_affine", False)):
        if hasattr(norm, name):
            setattr(norm, name, gone)
    return norm


def carry_hooks(old: nn.Module, new: nn.Module) -> nn.Module:
    """Copy forward hooks (layout and grid, by `swap_norms`) to the module that takes the old one's place."""
    for name in ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks"):
        getattr(new, name).update(getattr(old, name))
    return new.train(old.training)


def activations(norm: nn.Module) -> dict[str, nn.Module]:
    """The modules that follow the map inside a norm, by name: some of timm's norms hold a dropout and an activation."""
    parts = {name: getattr(norm, name, None) for name in ("drop", "act")}
    return {name: part for name, part in parts.items() if isinstance(part, nn.Module) and not isinstance(part, nn.Identity)}


def known_forward(norm: nn.Module) -> bool:
    """Whether it only normalises, as its class is named: a subclass may do anything, such as an activation."""
    known = KNOWN_BATCH_NORMS if isinstance(norm, _BatchNorm) else KNOWN_TOKEN_NORMS
    methods = ("forward", "transform", "apply_affine") if isinstance(norm, Norm) else ("forward",)
    places = {getattr(norm, method).__module__ for method in methods}
    return all(any(place == module or place.startswith(f"{module}.") for module in known) for place in places)


def find_sites(model: nn.Module) -> list[Site]:
    """Every norm, in the order of the model's modules. Raises for one that is not ready to be folded."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    found: list[Site] = []
    for module, where in paths.items():
        # A norm may be made of others: only the outer one is a site.
        inside = any(where[0].startswith(f"{path}.") for outer in found for path in outer.paths)
        site = None if inside else _read(module, tuple(where))
        if site is not None:
            found.append(site)
    return found


@torch.no_grad()
def _read(norm: nn.Module, paths: tuple[str, ...]) -> Site | None:
    site = Site(paths, norm)
    if hasattr(norm, "affine_map"):
        exact: Any = copy.deepcopy(norm).double()
        try:
            scale, shift = exact.affine_map()
        except RuntimeError as error:
            raise ValueError(f"{site.path} cannot be folded yet: {error}") from error
        site.scale, site.shift, site.whole = scale, shift, True
    elif isinstance(norm, _BatchNorm):
        site.axis, site.whole = 1, True
        if norm.running_mean is None or norm.running_var is None:
            site.trouble = "it keeps no running statistics"
            return site
        var, mean = norm.running_var.double(), norm.running_mean.double()
        site.scale = (var + norm.eps).rsqrt() * _or(norm.weight, 1.0)
        site.shift = _or(norm.bias, 0.0) - mean * site.scale
    elif isinstance(norm, TOKEN_NORMS):
        site.axis = 1 if isinstance(norm, nn.GroupNorm) or "2d" in type(norm).__name__ else -1
        if isinstance(norm, nn.LayerNorm | nn.RMSNorm) and len(norm.normalized_shape) > 1:
            site.trouble = "it normalises over several axes"
        weight, bias = norm.weight, getattr(norm, "bias", None)
        if weight is None and bias is None:
            return site
        channels = norm.dim if isinstance(norm, Norm) else (weight if weight is not None else bias).numel()  # type: ignore[union-attr]
        site.scale = (torch.ones(1) if weight is None else weight).expand(channels)
        site.shift = None if bias is None else bias.expand(channels)
    else:
        return None
    site.scale, site.shift = (x if x is None else x.detach().double().clone() for x in (site.scale, site.shift))
    if not hasattr(norm, "affine_map") and not known_forward(norm):
        site.trouble = f"{type(norm).__name__} has a forward of its own, which may do more than normalise"
    if any(not isinstance(getattr(hook, "__self__", None), SiteHook) for hook in _hooks(norm)):
        site.trouble = "a forward hook is registered on it"
    return site


def _hooks(module: nn.Module) -> list[object]:
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def _or(parameter: Tensor | None, value: float) -> Tensor | float:
    return value if parameter is None else parameter.double()
