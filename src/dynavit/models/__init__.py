"""Models: readable ones of our own, and thin entries for those of timm."""

from ..common.torchvision_shim import ensure_torchvision

ensure_torchvision()  # before the first import of timm

from .registry import create_model, list_models  # noqa: E402

__all__ = ["create_model", "list_models"]
