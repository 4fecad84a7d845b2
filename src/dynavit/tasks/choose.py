"""Which task a classifier is trained and judged by."""

from collections.abc import Sequence

from torch import nn

from .classification import Classification
from .early_exit import EarlyExit


def task_for(model: nn.Module, classes: int, exit_weights: Sequence[float] | None = None) -> Classification | EarlyExit:
    """`EarlyExit` for a model with `exits`, whose losses `exit_weights` weigh; `Classification` for all others."""
    if isinstance(getattr(model, "exits", None), nn.ModuleList):
        return EarlyExit(model, classes, exit_weights)
    if exit_weights is not None:
        raise ValueError(f"weights for exits were given, but {type(model).__name__} has no exits; leave them out")
    return Classification(model, classes)
