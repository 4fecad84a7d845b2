"""The one door to triton: whether its kernels can run here, and the kernels themselves.

Only `kernels/` imports triton, and only this file imports `kernels/`, when the first kernel is about to run. With
TRITON_INTERPRET=1 in the environment triton runs kernels on CPU tensors, slowly: that is how they are tested without a GPU.
"""

import functools
import importlib.util
import os
from types import ModuleType

import torch

from ....common.extras import not_installed

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # triton reads it once, too, when it is imported


@torch.compiler.assume_constant_result
def obstacle() -> str:
    """What keeps kernels from running in this process; empty if nothing does."""
    return _find_obstacle()


@functools.cache
def _find_obstacle() -> str:
    if not INTERPRETED and not torch.cuda.is_available():
        return "torch finds no CUDA GPU"
    if not INTERPRETED and torch.version.hip is not None:
        return "the kernels were compiled for NVIDIA GPUs only"
    if importlib.util.find_spec("triton") is None:
        return not_installed("triton", "gpu")
    return ""


def kernels() -> ModuleType:
    from . import kernels as module

    return module
