"""Write a module as an ONNX file."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...common.extras import require
from .program import quiet, trace


def write_onnx(
    module: nn.Module,
    inputs: Sequence[Tensor],
    file: Path,
    *,
    input_names: Sequence[str],
    output_names: Sequence[str],
    any_batch: bool = True,
) -> None:
    """`inputs` are an example, of batch 2 if the file is to take any batch. The weights are inside the file."""
    for needed in ("onnx", "onnxscript"):
        require(needed, "export")
    # The fused attention lays its result out in another way than the products that ONNX gets, and a view that follows it
    # would not fit those.
    with sdpa_kernel(SDPBackend.MATH):
        program = trace(module, inputs, any_batch=any_batch)
    with quiet(), _silent_loggers():
        converted = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=list(input_names), output_names=list(output_names)
        )
        assert converted is not None
        converted.save(file, external_data=False)


@contextmanager
def _silent_loggers() -> Iterator[None]:
    """The converter reports each of its steps to loggers."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
