"""8-bit weights for CPUs: onnxruntime's dynamic quantisation of the matrix products of an ONNX model.

Weights become int8, one scale for each column; activations are rounded when the model runs, one scale for each tensor. So it
needs no data, and it is not exact: the manifest holds its accuracy beside that of float32.
"""

import logging
from pathlib import Path

from ...common.extras import require
from .program import quiet


def quantise_onnx(source: Path, target: Path) -> None:
    """Write the 8-bit version of an ONNX model. Convolutions (the patch embedding) stay as they are."""
    onnx, quantization = require("onnx", "export"), require("onnxruntime.quantization", "export")
    model = onnx.load(source)
    # Shapes of inner values, weights among them. The quantiser transposes weights, and the old shapes would not fit.
    del model.graph.value_info[:]
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # it writes advice to the root logger
    try:
        with quiet():
            quantization.quantize_dynamic(
                model,
                target,
                op_types_to_quantize=["MatMul", "Gemm"],
                per_channel=True,
                weight_type=quantization.QuantType.QInt8,
            )
    finally:
        logger.setLevel(level)
