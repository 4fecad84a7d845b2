"""The C kernel as a library: compiled once per machine and loaded; None where that is not possible.

The system's compiler makes a plain shared library without torch's headers in about three seconds, at the first use, never at
installation. The compiler is `CC` if it is set, else gcc, cc or clang, the first that is there. The library is kept in the
user's cache under a name that depends on the sources, the compiler and its version, the flags and the processor.
`DYNAVIT_NATIVE=0` switches native code off; `DYNAVIT_CACHE` moves the cache.
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
_FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-pthread"]


@functools.cache
def load_kernel() -> ctypes.CDLL | None:
    """The library, or None if native code is switched off or (with one warning that says why) cannot be built."""
    if os.environ.get("DYNAVIT_NATIVE", "1") == "0":
        return None
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("gcc", "cc", "clang")), None)
    if compiler is None:
        reason = "no C compiler (gcc, cc or clang) was found"
    else:
        try:
            return ctypes.CDLL(str(_compiled(compiler)))
        except (OSError, subprocess.SubprocessError, RuntimeError) as error:  # RuntimeError: a user without a home
            detail = getattr(error, "stderr", None) or str(error)
            reason = f"{compiler} could not build DTN's C kernel: {detail.strip()[-800:]}"
    warnings.warn(f"dynavit: the fast CPU kernel is not used, torch does the work: {reason}", RuntimeWarning, stacklevel=2)
    return None


def _compiled(compiler: str) -> Path:
    target = _cache_folder() / f"dtn-{_key(compiler)}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:  # renamed when whole: two processes may build at once
            fresh = Path(folder) / target.name
            command = [*shlex.split(compiler), *_FLAGS, *map(str, sorted(_HERE.glob("*.c"))), "-o", str(fresh), "-lm"]
            try:
                _run([*command, "-fopenmp"])
            except subprocess.CalledProcessError:  # clang often comes without OpenMP: the numbers are the same on one thread
                _run(command)
            fresh.replace(target)
    return target


def _key(compiler: str) -> str:
    """A hash of everything that the library depends on."""
    # An updated compiler keeps its name. One that does not know the option is known by its name alone.
    version = _run([*shlex.split(compiler), "--version"], check=False)
    key = hashlib.sha256()
    sources = [part for path in sorted(_HERE.glob("*.[ch]")) for part in (path.name, path.read_text())]
    for part in (compiler, version, *_FLAGS, platform.machine(), _processor(), *sources):
        key.update(part.encode() + b"\0")
    return key.hexdigest()[:16]


def _run(command: list[str], check: bool = True) -> str:
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=120).stdout


def _cache_folder() -> Path:
    own = os.environ.get("DYNAVIT_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dynavit"


def _processor() -> str:
    """The features that `-march=native` uses: a cache on a shared home must not hand one machine's code to another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
