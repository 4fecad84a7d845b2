"""DTN's C kernel as a library, see `norms/native_library.py`."""

import ctypes
import functools
from pathlib import Path

import torch

from ...native_library import NativeLibrary

KERNEL = NativeLibrary("dtn", Path(__file__).parent, "DTN's C kernel")


@torch.compiler.assume_constant_result
def native_kernel_available() -> bool:
    """Whether calls on CPUs can go to the C kernel."""
    return load_kernel() is not None


@functools.cache
def load_kernel() -> ctypes.CDLL | None:
    """The library, or None if native code is switched off or (with one warning that says why) cannot be built."""
    return KERNEL.load()
