"""Modules that can replace themselves by something simpler: `fuse()`, which timm's `reparameterize_model` calls too."""

from typing import Any

from torch import nn


def fuse_modules(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Let every module that can replace itself do so, outermost first. In place; also the paths that changed."""
    holder = nn.ModuleDict({"model": model})
    fused: list[str] = []
    _fuse_children(holder, "", fused)
    return holder["model"], [path.removeprefix("model").removeprefix(".") or type(model).__name__ for path in fused]


def _fuse_children(parent: nn.Module, path: str, fused: list[str]) -> None:
    for name, child in list(parent.named_children()):
        own: Any = getattr(child, "fuse", None)
        if callable(own):
            child = own().eval()
            parent.register_module(name, child)
            fused.append(f"{path}{name}")
        _fuse_children(child, f"{path}{name}.", fused)
