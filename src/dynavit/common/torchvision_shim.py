"""Make `import torchvision` work where its compiled operators do not fit the installed torch."""

import importlib
import sys
from typing import Literal

import torch

# The operators torchvision describes to torch in Python while it is imported, whether or not its library could be loaded.
_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: set[str] = set()


def ensure_torchvision() -> Literal["native", "shimmed"]:
    """Import torchvision; call this before importing timm or torchvision anywhere in the package.

    A torchvision built for CUDA cannot load its C++ operators beside a CPU build of torch, and then the whole import fails with
    "operator torchvision::nms does not exist", although data sets, transforms and models are plain Python. We declare the
    missing operators (names and types, no code) and import again. What really needs them still refuses with a clear message:
    `torchvision.ops.nms`, `deform_conv2d`, and decoding of images by `torchvision.io` (read images with PIL).

    Returns:
        "native" if torchvision was sound (then this is a plain import), "shimmed" if operators had to be declared.
        Any other trouble, such as a torchvision that is not installed, is raised as it is.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:  # only without `torchvision_hook`, which repairs the import itself
        if not is_the_fault(error):
            raise
        declare_missing_operators()
        sys.modules.pop("torchvision", None)
        importlib.import_module("torchvision")
    return "shimmed" if _declared else "native"


def is_the_fault(error: RuntimeError) -> bool:
    return "operator torchvision::" in str(error)


def declare_missing_operators() -> None:
    """Names and types of the operators, after an import of torchvision that failed; the next one succeeds."""
    # The failed import left submodules behind, and a second import would find these half-made ones.
    for name in [name for name in sys.modules if name.startswith("torchvision.")]:
        del sys.modules[name]
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)
            _declared.add(name)
