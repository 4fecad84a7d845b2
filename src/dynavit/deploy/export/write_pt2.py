"""Write a module as a .pt2 file, torch's own format: exact, but for torch only, and it may run code when it is opened."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ...common.files import writing
from .program import quiet, trace


def write_pt2(module: nn.Module, inputs: Sequence[Tensor], file: Path) -> None:
    """`inputs` are an example of batch 2; the file takes any batch."""
    program = trace(module, inputs)
    with quiet(), writing(file, RuntimeError):
        torch.export.save(program, file)
