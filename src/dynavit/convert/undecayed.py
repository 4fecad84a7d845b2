"""`no_weight_decay()` of a swapped model: timm's way to tell an optimiser which parameters it must not pull towards 0.

A decayed `position` would widen DTN's kernels, and a decayed share would drift away from LayerNorm, whatever the data say.
"""

from dataclasses import dataclass

from torch import nn

from ..norms.undecayed import names_without_decay


@dataclass(frozen=True)
class Undecayed:
    """Takes the place of a model's method, as plain data: copies and pickles of the model keep it."""

    names: frozenset[str]

    def __call__(self) -> set[str]:
        return set(self.names)


def exempt_norms(model: nn.Module) -> None:
    """Give the model a `no_weight_decay` that names the norms' parameters beside those that its class exempts."""
    method = getattr(type(model), "no_weight_decay", None)
    own = set(method(model)) if callable(method) else set()
    model.no_weight_decay = Undecayed(frozenset(own | names_without_decay(model)))  # type: ignore[assignment]
