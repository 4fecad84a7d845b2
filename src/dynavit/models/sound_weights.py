"""Numbers that can be a model's weights. A file may hold anything under the right names: damaged, quantised, diverged."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

SHOWN = 4  # names in an error


def check_sound(source: object, pairs: Iterable[tuple[str, Tensor, Tensor]]) -> None:
    """ValueError that names what is wrong with these weights.

    Args:
        source: where they come from, for the message.
        pairs: name, tensor of the source, and the model's own tensor that it would replace.
    """
    problems: dict[str, list[str]] = {}
    for name, given, own in pairs:
        if problem := _problem(given, own):
            problems.setdefault(problem, []).append(name)
    if problems:
        text = "; ".join(f"{len(names)} {problem}: {_some(names)}" for problem, names in problems.items())
        raise ValueError(f"{source} holds no weights that a model could have. Tensors {text}. Nothing was loaded")


def _problem(given: Any, own: Tensor) -> str | None:
    if given.layout is not torch.strided or given.is_quantized:
        return "that are sparse or quantised"
    if given.is_complex() or (own.is_floating_point() and not given.is_floating_point()):
        return f"of {str(given.dtype).removeprefix('torch.')} numbers"
    if given.is_floating_point() and not given.float().isfinite().all():  # float: not every small format knows isfinite
        return "with NaN or infinity"
    return None


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
