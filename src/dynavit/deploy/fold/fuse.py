"""Modules that can replace themselves by something simpler: `fuse()`, which timm's `reparameterize_model` calls too."""

from typing import Any

from torch import nn

from .layers import describe_layer
from .plan import FoldPlan
from .steps import Fuse, OwnFuse


def fuse_modules(model: nn.Module, plan: FoldPlan) -> tuple[nn.Module, list[str]]:
    """Let every module that can replace itself do so, outermost first. In place; also the paths that changed."""
    holder = nn.ModuleDict({"model": model})
    fused: list[str] = []
    _fuse_children(holder, "", plan, fused)
    return holder["model"], [path or type(model).__name__ for path in fused]


def _fuse_children(parent: nn.Module, path: str, plan: FoldPlan, fused: list[str]) -> None:
    for name, child in list(parent.named_children()):
        own: Any = getattr(child, "fuse", None)
        if callable(own):
            child = own().eval()
            parent.register_module(name, child)
            fused.append(f"{path}{name}".removeprefix("model").removeprefix("."))
            layer = describe_layer(child)
            plan.steps.append(OwnFuse(fused[-1], type(child).__name__) if layer is None else Fuse(fused[-1], layer))
        _fuse_children(child, f"{path}{name}.", plan, fused)
