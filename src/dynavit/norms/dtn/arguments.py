"""Operands and layout of a call as the arguments of an op of the dispatcher, which takes tensors and numbers only."""

from typing import Any, get_type_hints

from torch import Tensor

from .math import Layout, Operands

TENSORS = len(Operands._fields)  # arguments in front that are tensors
_KINDS = {name: "Tensor" if kind is Tensor else "Tensor?" for name, kind in get_type_hints(Operands).items()}
SCHEMA = (
    ", ".join(f"{kind} {name}" for name, kind in _KINDS.items())
    + ", int[] grid, int prefix, int radius, bool banded, int pool, int ddof, float eps"
)


def as_arguments(layout: Layout) -> tuple[Any, ...]:
    """The numbers that stand behind the tensors."""
    radius = -1 if layout.radius is None else layout.radius
    return list(layout.grid), layout.prefix, radius, layout.banded, layout.pool, layout.ddof, layout.eps


def from_arguments(arguments: tuple[Any, ...]) -> tuple[Operands, Layout]:
    grid, prefix, radius, banded, pool, ddof, eps = arguments[TENSORS:]
    layout = Layout(tuple(grid), prefix, None if radius < 0 else radius, banded, pool, ddof=ddof, eps=eps)
    return Operands(*arguments[:TENSORS]), layout
