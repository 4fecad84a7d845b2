"""A fold that holds for inputs of one size refuses others."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class OneSize:
    """A forward pre-hook, with keywords, that refuses inputs of any shape but `shape`, at which the model pads no zeros."""

    shape: tuple[int, ...]  # of an input without the batch

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x: Tensor = args[0] if args else next(iter(kwargs.values()))
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(
                f"this model was folded for inputs of {_spelled(self.shape)} and got {_spelled(tuple(x.shape[1:]))}, where its "
                "windows may be padded with zeros: fold the model with an example= of that size"
            )


def _spelled(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
