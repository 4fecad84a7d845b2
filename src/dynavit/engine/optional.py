"""Methods that a layer may have. This is all the engine knows about layers."""

from collections.abc import Callable
from typing import Any

from torch import nn


def optional_methods(module: nn.Module, name: str) -> dict[str, Callable[..., Any]]:
    """{path: method} for all modules inside, and this one itself, that have a method of this name."""
    found = {path: getattr(part, name, None) for path, part in module.named_modules()}
    return {path: method for path, method in found.items() if callable(method)}
