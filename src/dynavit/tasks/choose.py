"""Which task a classifier is trained and judged by, and which of its answers counts."""

from collections.abc import Sequence

from torch import Tensor, nn

from .classification import Classification
from .early_exit import EarlyExit


def task_for(model: nn.Module, classes: int, exit_weights: Sequence[float] | None = None) -> Classification | EarlyExit:
    """`EarlyExit` for a model with `exits`, whose losses `exit_weights` weigh; `Classification` for all others."""
    if isinstance(getattr(model, "exits", None), nn.ModuleList):
        return EarlyExit(model, classes, exit_weights)
    if exit_weights is not None:
        raise ValueError(f"weights for exits were given, but {type(model).__name__} has no exits; leave them out")
    return Classification(model, classes)


def final_logits(outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    """(b, classes) of a classifier; of a cascade, those of its last exit."""
    return outputs[-1] if isinstance(outputs, tuple) else outputs
