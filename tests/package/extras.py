"""Uses of every extra, each of which fails where a library of the extra is not installed.

python extras.py      # prints what each said as JSON lists; for an environment without any extra
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Use(NamedTuple):
    """`call` fails if `missing`, one library or each of several that would do, is not installed."""

    extra: str
    missing: tuple[str, ...]
    call: Callable[[], object]


def data() -> object:
    from dynavit.data.config import DataConfig
    from dynavit.data.hub import open_hub

    return open_hub("some/photos", None, DataConfig())


def detect() -> object:
    from dynavit.data.detection.coco_tools import coco_tools

    return coco_tools("average precision (AP)")


def convert_to_onnx() -> object:
    import torch

    from dynavit.deploy.export.write_onnx import write_onnx

    return write_onnx(torch.nn.Linear(2, 2), [torch.ones(2, 2)], Path("model.onnx"), input_names=["x"], output_names=["y"])


def quantise() -> object:
    from dynavit.deploy.export.quantise import quantise_onnx

    return quantise_onnx(Path("model.onnx"), Path("int8.onnx"))


def run_onnx() -> object:
    from dynavit.deploy.bundle.runner import OnnxPart

    return OnnxPart(Path("model.onnx")).session


def gpu() -> object:
    """DTN does without triton: nothing fails, and the reason why its kernels do not run is a sentence."""
    from dynavit.norms.dtn.gpu import gate

    gate.INTERPRETED = True  # as if there were a GPU
    gate._find_obstacle.cache_clear()
    try:
        raise ValueError(gate._find_obstacle())
    finally:
        gate.INTERPRETED = False
        gate._find_obstacle.cache_clear()


def ray() -> object:
    from dynavit.deploy.serve.ray_app import build

    return build({"bundle": "runs/x-onnx"})


def robust() -> object:
    from dynavit.data.corruptions.exact import check_exact

    return check_exact(3, 32, 32)


def serve() -> object:
    from dynavit.runs.serve import service_app

    return service_app("runs/x")


def track() -> object:
    from dynavit.engine.log import require_tensorboard

    return require_tensorboard()


USES = [
    Use("data", ("datasets",), data),
    Use("detect", ("faster_coco_eval", "pycocotools"), detect),
    Use("export", ("onnx",), quantise),
    Use("export", ("onnxruntime",), run_onnx),
    Use("export", ("onnxscript",), convert_to_onnx),
    Use("gpu", ("triton",), gpu),
    Use("ray", ("ray",), ray),
    Use("robust", ("imagecorruptions",), robust),
    *(Use("serve", (library,), serve) for library in ("fastapi", "prometheus_client", "python_multipart", "uvicorn")),
    Use("track", ("tensorboard",), track),
]


def said(use: Use) -> str:
    """The error; "" if it went well."""
    try:
        use.call()
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    json.dump([(use.extra, said(use)) for use in USES], sys.stdout)
