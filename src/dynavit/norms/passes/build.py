"""The passes in C as a library: compiled once per machine and loaded; None where that is not possible.

Compiler, flags, cache and `DYNAVIT_NATIVE=0` are those of DTN's kernel (`dtn/native/build.py`), and so is the rule that a
library is opened only if its content is what its name says.
"""

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

import torch

from ..dtn.native import build as shared

_HERE = Path(__file__).parent


@torch.compiler.assume_constant_result
def passes_available() -> bool:
    """Whether tokens on CPUs can go to C."""
    return load_passes() is not None


@functools.cache
def load_passes() -> ctypes.CDLL | None:
    """The library, or None if native code is switched off or (with one warning that says why) cannot be built."""
    if os.environ.get("DYNAVIT_NATIVE", "1") == "0":
        return None
    compiler = os.environ.get("CC", "").strip() or next(filter(shutil.which, ("gcc", "cc", "clang")), None)
    if compiler is None:
        reason = "no C compiler (gcc, cc or clang) was found"
    else:
        try:
            return _load(compiler)
        except (OSError, RuntimeError, subprocess.SubprocessError, ValueError) as error:
            reason = f"{compiler} could not build them: {(getattr(error, 'stderr', None) or str(error)).strip()[-800:]}"
    warnings.warn(f"dynavit: C passes of norms are not used, torch does the work: {reason}", RuntimeWarning, stacklevel=2)
    return None


def _load(compiler: str) -> ctypes.CDLL:
    start = f"passes-{_key(compiler)}-"
    cache = shared._cache_folder()
    try:
        if (kept := shared._sound(cache, start)) is not None:
            return ctypes.CDLL(str(kept))
        cache.mkdir(parents=True, exist_ok=True)
        workplace = tempfile.TemporaryDirectory(dir=cache)
    except OSError:  # nothing can be kept: built for this process alone, and removed while it stays in memory
        with tempfile.TemporaryDirectory(prefix="dynavit-") as folder:
            return ctypes.CDLL(str(_build(compiler, Path(folder))))
    with workplace as folder:  # renamed when whole: two processes may build at once
        fresh = _build(compiler, Path(folder))
        with fresh.open("rb") as stream:
            os.fsync(stream.fileno())
        return ctypes.CDLL(str(fresh.replace(cache / f"{start}{shared._digest(fresh)}.so")))


def _build(compiler: str, folder: Path) -> Path:
    library = folder / "passes.so"
    command = [*shlex.split(compiler), *shared._FLAGS, *map(str, sorted(_HERE.glob("*.c"))), "-o", str(library), "-lm"]
    try:
        shared._run([*command, "-fopenmp"])
    except subprocess.CalledProcessError:  # without OpenMP the numbers are the same, on one thread
        shared._run(command)
    return library


def _key(compiler: str) -> str:
    """A hash of everything that the library depends on."""
    version = shared._run([*shlex.split(compiler), "--version"], check=False)
    sources = [part for path in sorted(_HERE.glob("*.[ch]")) for part in (path.name, path.read_text())]
    text = "\0".join((compiler, version, *shared._FLAGS, shared._processor(), *sources))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
