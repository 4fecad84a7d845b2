"""Compiles a C file of this folder once per machine and loads it; answers None where that cannot be done.

The system's compiler makes a plain shared library without torch's headers in about two seconds, at the first use,
never at installation. The library is kept in the user's cache under a name that depends on the source, the flags and
the processor. `DYNAVIT_NATIVE=0` switches native code off; `DYNAVIT_CACHE` moves the cache.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

_HERE = Path(__file__).parent
_FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared"]


@functools.cache
def load_native(name: str) -> ctypes.CDLL | None:
    """The library made from `name`.c, or None (with one warning that says why) if native code is unavailable."""
    if os.environ.get("DYNAVIT_NATIVE", "1") == "0":
        return None
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("gcc", "cc", "clang")), None)
    if compiler is None:
        reason = "no C compiler (gcc, cc or clang) was found"
    else:
        try:
            return ctypes.CDLL(str(_compiled(name, compiler)))
        except (OSError, subprocess.SubprocessError, RuntimeError) as error:  # RuntimeError: a user without a home
            detail = getattr(error, "stderr", None) or str(error)
            reason = f"{compiler} could not build {name}.c: {detail.strip()[-800:]}"
    warnings.warn(f"dynavit: the fast CPU kernel is not used, torch does the work: {reason}", RuntimeWarning, stacklevel=2)
    return None


def _compiled(name: str, compiler: str) -> Path:
    sources = sorted(_HERE.glob("*.[ch]"))
    key = hashlib.sha256()
    for part in (compiler, *_FLAGS, platform.machine(), _processor(), *(path.read_text() for path in sources)):
        key.update(part.encode() + b"\0")
    target = _cache_folder() / f"{name}-{key.hexdigest()[:16]}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:  # renamed when whole: two processes may build at once
            fresh = Path(folder) / target.name
            command = [*shlex.split(compiler), *_FLAGS, str(_HERE / f"{name}.c"), "-o", str(fresh), "-lm"]
            try:
                subprocess.run([*command, "-fopenmp"], check=True, capture_output=True, text=True, timeout=120)
            except subprocess.CalledProcessError:  # Apple's clang has no OpenMP: one thread is still right
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
            fresh.replace(target)
    return target


def _cache_folder() -> Path:
    own = os.environ.get("DYNAVIT_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dynavit"


def _processor() -> str:
    """What `-march=native` depends on: a cache on a shared home must not hand one machine's code to another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
