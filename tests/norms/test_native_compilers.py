"""The C kernel under every compiler: no warning, the numbers of the oracle, and an error instead of a crash without memory.

The libraries go into the user's cache, so that only the first run of these tests compiles.
"""

import ctypes
import math
import shutil
import subprocess
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import dynavit.norms.dtn.native.build as build
import dynavit.norms.native_library as native_library
from norms.dtn_cases import assert_close, expect, finite, layer, run, tokens

SOURCES = sorted(build.KERNEL.sources.glob("*.[ch]"))
LEVELS = {"x86-64": "sse2", "x86-64-v3": "avx2", "x86-64-v4": "avx512f"}  # vectors of 16, 32 and 64 bytes; flag in cpuinfo


@pytest.fixture
def compile_with(monkeypatch):
    """Makes layers use a kernel from this compiler, built with more flags; a warning is an error."""
    monkeypatch.delenv("DYNAVIT_NATIVE", raising=False)

    def use(compiler: str, *flags: str) -> ctypes.CDLL:
        if shutil.which(compiler) is None:
            assert compiler != "gcc", "these tests need gcc"
            pytest.skip(f"{compiler} is not installed")
        monkeypatch.setenv("CC", compiler)
        monkeypatch.setattr(native_library, "FLAGS", [*native_library.FLAGS, "-Wall", "-Wextra", "-Werror", *flags])
        build.load_kernel.cache_clear()
        return build.load_kernel()

    yield use
    build.load_kernel.cache_clear()


# One call for every branch of the C code: grid, channels, heads, other options, real tokens (rows, columns) of each sample.
CALLS = {
    "vectors and a rest": ((7, 11), 70, 5, {}, None),
    "one row": ((1, 18), 10, 2, {}, None),
    "one column": ((18, 1), 9, 3, {}, None),
    "axes shorter than a block": ((2, 3), 4, 2, {}, None),
    "a prefix and no affine map": ((4, 5), 20, 4, {"num_prefix_tokens": 2, "affine": False}, None),
    "long axes": ((19, 34), 9, 3, {}, None),
    "a window": ((6, 9), 9, 3, {"average": "window", "radius": 2}, None),
    "a band": ((130,), 18, 9, {"ndim": 1, "kernel": "band", "radius": 8}, None),
    "padded sequences": ((60,), 18, 9, {"ndim": 1, "num_prefix_tokens": 1}, [0, 1, 30, 60]),
    "padded images": ((13, 17), 20, 4, {"num_prefix_tokens": 1}, [(0, 0), (1, 1), (13, 9), (6, 17), (13, 17)]),
    "a run of equal rows": ((40, 45), 9, 3, {"radius": 2}, None),
}


def check_numbers() -> None:
    """Outputs and all gradients, in both precisions."""
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
        for name, (grid, dim, heads, options, lengths) in CALLS.items():
            norm = layer(dim, heads, dtype=dtype, **options)
            count = norm.num_prefix_tokens + math.prod(grid)
            mask = None
            if lengths is not None:
                mask = torch.zeros(len(lengths), *grid, dtype=torch.bool)
                for sample, real in zip(mask, lengths, strict=True):
                    sample[tuple(slice(n) for n in (real if isinstance(real, tuple) else (real,)))] = True
                mask = torch.nn.functional.pad(mask.flatten(1), (norm.num_prefix_tokens, 0), value=True)
            x = tokens(len(lengths or [0, 0]), count, dim, dtype=dtype)
            found = run(norm, x, grid=grid, mask=mask)
            assert finite(found), name
            radius = options.get("radius") if norm.average == "learned" else None
            for key, value in expect(norm, x, grid, mask, radius).items():
                assert_close({key: found[key]}, {key: value}, tolerance)


@pytest.mark.slow  # test_dtn.py and the others run what the first compiler found has made, gcc almost everywhere
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_every_compiler_gives_the_equations(compile_with, compiler):
    assert compile_with(compiler) is not None
    check_numbers()


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("level", LEVELS)
def test_every_vector_width(compile_with, compiler, level):
    """Compiled without a warning for all widths; run where this processor can."""
    library = compile_with(compiler, f"-march={level}")
    assert library is not None
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and LEVELS[level] in cpuinfo.read_text():
        check_numbers()


def in_a_new_thread(call):
    """The result of a call from a thread that keeps no scratch memory of earlier calls."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def becomes_zero(number: ctypes.c_int) -> bool:
    """Memory of a thread is freed a moment after Python has joined it."""
    deadline = time.monotonic() + 30
    while number.value and time.monotonic() < deadline:
        time.sleep(0.001)
    return number.value == 0


@pytest.mark.parametrize("ndim", [1, 2])
def test_any_allocation_may_fail(compile_with, ndim):
    """Each of them in turn: MemoryError, and nothing is left when the thread has ended, as after a call that went well."""
    counting = Path(__file__).with_name("native_memory.h")
    version = zlib.crc32(counting.read_bytes())  # the cache knows flags, not the files that they name
    library = compile_with("gcc", "-O1", "-include", str(counting), f"-DCOUNTING={version}")
    names = ("allocations_before_failure", "allocations_alive")
    before_failure, alive = (ctypes.c_int.in_dll(library, name) for name in names)
    norm, x = layer(6, 2, ndim=ndim), tokens(2, 30, 6)
    call = {"grid": (5, 6)} if ndim == 2 else {"grid": (30,), "mask": torch.ones(2, 30, dtype=torch.bool)}

    before_failure.value = 10_000
    assert_close(in_a_new_thread(lambda: run(norm, x, **call)), expect(norm, x, call["grid"]), 1e-11)
    allocations = 10_000 - before_failure.value
    assert allocations > 50 and becomes_zero(alive)
    for number in range(allocations):
        before_failure.value = number
        with pytest.raises(MemoryError, match=r"\(2, 30, 6\)"):
            in_a_new_thread(lambda: run(norm, x, **call))
        assert becomes_zero(alive), number


@pytest.mark.skipif(shutil.which("clang-format") is None, reason="clang-format is not installed")
def test_the_source_is_formatted():
    """As .clang-format says."""
    ours = [*SOURCES, Path(__file__).with_name("native_memory.h")]
    checked = subprocess.run(["clang-format", "--dry-run", "--Werror", *ours], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
