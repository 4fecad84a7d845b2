"""The passes in C as a library, see `norms/native_library.py`."""

import ctypes
import functools
from pathlib import Path

import torch

from ..native_library import NativeLibrary

PASSES = NativeLibrary("passes", Path(__file__).parent, "the C code of norms with statistics of channels")


@torch.compiler.assume_constant_result
def passes_available() -> bool:
    """Whether tokens on CPUs can go to C."""
    return load_passes() is not None


@functools.cache
def load_passes() -> ctypes.CDLL | None:
    """The library, or None if native code is switched off or (with one warning that says why) cannot be built."""
    return PASSES.load()
