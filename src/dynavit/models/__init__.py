"""Readable models of our own, and thin entries for those of timm. Importing this package registers ours in timm too."""

from ..common.torchvision_shim import ensure_torchvision

ensure_torchvision()  # before the first import of timm

from . import cascade, detection, pvt, sequence, t2t, timm_entries, vit  # noqa: E402, F401  (they register themselves)
from .registry import create_model, list_models, register_model, task_of  # noqa: E402
from .released import import_released  # noqa: E402

__all__ = ["create_model", "import_released", "list_models", "register_model", "task_of"]
