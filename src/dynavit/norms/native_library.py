"""C code of norms as a library: compiled once per machine and loaded; None where that is not possible.

The system's compiler makes a plain shared library without torch's headers in a few seconds, at the first use, never at
installation. The compiler is `CC` if it is set, else gcc, cc or clang, the first that is there. The library is kept in the
user's cache under a name that depends on the sources, the compiler and its version, the flags and the processor, and ends in
its own SHA-256: a library that was cut off or altered would crash the process, so it is compared first and built again if it
differs. `DYNAVIT_NATIVE=0` switches native code off; `DYNAVIT_CACHE` moves the cache.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-pthread"]


class _UnusableCacheError(Exception):
    """No library can be kept: there is no home, no right, no space, or a file in the way."""


@dataclass(frozen=True)
class NativeLibrary:
    """All C files of a folder as one library.

    Attributes:
        name: of its files in the cache.
        sources: the folder.
        about: what it is, for warnings.
    """

    name: str
    sources: Path
    about: str

    def load(self) -> ctypes.CDLL | None:
        """The library, or None if native code is switched off or (with one warning that says why) cannot be built."""
        if os.environ.get("DYNAVIT_NATIVE", "1") == "0":
            return None
        compiler = os.environ.get("CC", "").strip() or next(filter(shutil.which, ("gcc", "cc", "clang")), None)
        if compiler is None:
            reason = "no C compiler (gcc, cc or clang) was found"
        else:
            try:
                return self._load(compiler)
            except (OSError, subprocess.SubprocessError, ValueError) as error:  # ValueError: a quote in CC that is not closed
                detail = getattr(error, "stderr", None) or str(error)
                detail = detail.decode(errors="replace") if isinstance(detail, bytes) else detail
                reason = f"{compiler} could not build {self.about}: {detail.strip()[-800:]}"
        warnings.warn(f"dynavit: {self.about} is not used, torch does the work: {reason}", RuntimeWarning, stacklevel=3)
        return None

    def _load(self, compiler: str) -> ctypes.CDLL:
        try:
            library = self.compiled(compiler)
        except _UnusableCacheError as error:
            warnings.warn(
                f"dynavit: {self.about} cannot be kept and is built anew by each process ({error}); set DYNAVIT_CACHE to a "
                "folder that can be written",
                RuntimeWarning,
                stacklevel=4,
            )
            with tempfile.TemporaryDirectory(prefix="dynavit-") as folder:  # removed while the library stays in memory
                return ctypes.CDLL(str(self.build(compiler, Path(folder))))
        try:
            return ctypes.CDLL(str(library))
        except OSError:
            library.unlink(missing_ok=True)  # whatever the compiler made, it is no library
            raise

    def compiled(self, compiler: str) -> Path:
        """The library in the cache, built if it is not there or not as it was built."""
        start = f"{self.name}-{self.key(compiler)}-"
        try:
            cache = _cache_folder()
            if (kept := _sound(cache, start)) is not None:
                return kept
            cache.mkdir(parents=True, exist_ok=True)
            workplace = tempfile.TemporaryDirectory(dir=cache)
        except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
            raise _UnusableCacheError(str(error)) from error
        with workplace as folder:  # renamed when whole: two processes may build at once
            fresh = self.build(compiler, Path(folder))
            if (kept := _sound(cache, start)) is not None:  # the other was faster
                return kept
            with fresh.open("rb") as stream:
                os.fsync(stream.fileno())
            return fresh.replace(cache / f"{start}{_digest(fresh)}.so")

    def build(self, compiler: str, folder: Path) -> Path:
        library = folder / f"{self.name}.so"
        files = map(str, sorted(self.sources.glob("*.c")))
        command = [*shlex.split(compiler), *FLAGS, *files, "-o", str(library), "-lm"]
        try:
            _run([*command, "-fopenmp"])
        except subprocess.CalledProcessError:  # clang often comes without OpenMP: the numbers are the same on one thread
            _run(command)
        if not library.is_file():
            raise OSError("it ended well and left no library")
        return library

    def key(self, compiler: str) -> str:
        """A hash of everything that the library depends on."""
        # An updated compiler keeps its name. One that does not know the option is known by its name alone.
        version = _run([*shlex.split(compiler), "--version"], check=False)
        key = hashlib.sha256()
        sources = [part for path in sorted(self.sources.glob("*.[ch]")) for part in (path.name, path.read_text())]
        for part in (compiler, version, *FLAGS, platform.machine(), _processor(), *sources):
            key.update(part.encode() + b"\0")
        return key.hexdigest()[:16]


def _sound(cache: Path, start: str) -> Path | None:
    """A library whose name begins so and whose content is what its name says. Others with that beginning are removed."""
    for library in sorted(cache.glob(f"{start}*.so")):
        if library.is_file() and library.stem == start + _digest(library):
            return library
        with suppress(OSError):
            library.unlink()
    return None


def _digest(library: Path) -> str:
    with library.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _run(command: list[str], check: bool = True) -> str:
    # A compiler speaks the language of its user, in any encoding.
    return subprocess.run(command, check=check, capture_output=True, text=True, errors="replace", timeout=120).stdout


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
