"""Before any test of this room imports timm."""

from dynavit.common.torchvision_shim import ensure_torchvision

ensure_torchvision()
