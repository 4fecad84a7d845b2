"""Detectors: a pyramid of feature maps with any norm, RetinaNet and Mask R-CNN on top of it, and operations on boxes."""

from . import maskrcnn, retinanet  # noqa: F401  (they register themselves)
