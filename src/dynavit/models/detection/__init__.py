"""Detectors: a pyramid of feature maps with any norm, RetinaNet and Mask R-CNN on top of it, and operations on boxes."""

from . import retinanet  # noqa: F401  (it registers itself)
