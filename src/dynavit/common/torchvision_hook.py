"""`import dynavit` before `import timm` is enough where torchvision's wheel does not fit torch.

The operators have to be declared while torchvision is imported, and torch should not be loaded for that earlier. So nothing
happens here but a note to Python's importer: when torchvision is asked for, its fault is repaired. This file needs no torch.
"""

import importlib.abc
import sys
from collections.abc import Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _TorchvisionFinder(importlib.abc.MetaPathFinder):
    """Finds torchvision where the other finders do, and repairs its import."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torchvision":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((found for finder in others if (found := finder.find_spec(name, path, target)) is not None), None)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            loader.exec_module = partial(_run_repaired, loader.exec_module)
        return spec


def _run_repaired(run: Any, module: ModuleType) -> None:
    try:
        run(module)
    except RuntimeError as error:
        from .torchvision_shim import declare_missing_operators, is_the_fault

        if not is_the_fault(error):
            raise
        declare_missing_operators()
        run(module)


def install_torchvision_hook() -> None:
    if not any(isinstance(finder, _TorchvisionFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchvisionFinder())
