"""The graph of a module, from which both export formats are written."""

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram


def trace(module: nn.Module, inputs: Sequence[Tensor], *, any_batch: bool = True) -> ExportedProgram:
    """The graph of a module in evaluation mode. With `any_batch` the first axis of all inputs is one free number.

    A batch of 1 in the example would be taken for a constant, so give 2.
    """
    if module.training:
        raise ValueError(f"{type(module).__name__} is in training mode; call eval() before exporting it")
    shapes = tuple({0: Dim.DYNAMIC} for _ in inputs) if any_batch else None
    # strict: followed as Python code, where len(x) stays free. Following values only, it would become a constant.
    with torch.no_grad(), quiet():
        return torch.export.export(module, tuple(inputs), dynamic_shapes=shapes, strict=True)


def frozen_copy(module: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A copy for inference on a CPU: in float32 to be traced, in float64 to be compared with."""
    return copy.deepcopy(module).cpu().to(dtype).eval().requires_grad_(False)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the warnings of torch's exporters, which are about their own code."""
    with warnings.catch_warnings():
        for kind in (FutureWarning, DeprecationWarning, UserWarning):
            warnings.simplefilter("ignore", kind)
        yield
