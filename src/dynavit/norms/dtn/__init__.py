"""Dynamic Token Normalization: the layer, the authors' released variant, and the ways to compute them."""

from .layer import DynamicTokenNorm
from .released import ReleasedDynamicTokenNorm

__all__ = ["DynamicTokenNorm", "ReleasedDynamicTokenNorm"]
