"""Checkpoints of other people's releases: their state dicts become models of ours that give the same logits."""

from .importing import import_released

__all__ = ["import_released"]
