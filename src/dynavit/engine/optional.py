"""Methods that a layer may have. This is all the engine knows about layers."""

from collections.abc import Callable
from typing import Any

from torch import nn


def optional_methods(model: nn.Module, name: str) -> dict[str, Callable[..., Any]]:
    """{module path: its method} for all modules, the model itself included, that have a method of this name."""
    found = {path: getattr(module, name, None) for path, module in model.named_modules()}
    return {path: method for path, method in found.items() if callable(method)}
