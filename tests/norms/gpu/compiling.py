"""Compiles, without a GPU, exactly the kernels that a call of DTN would launch, and reads what the compiler says of them.

A program, since triton's mode is fixed at import: `compiling.py '[CASES, ARCHS, NAME]'` prints JSON, one line per kernel.
"""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dynavit.norms.dtn.gpu import launch
from dynavit.norms.dtn.math import Layout, Operands

KINDS = {torch.float32: "*fp32", torch.int32: "*i32", torch.uint8: "*u8"}


@dataclass(frozen=True)
class Case:
    name: str
    grid: tuple[int, int]
    channels: int
    heads: int
    prefix: int = 0
    affine: bool = True
    masked: bool = False


@dataclass(frozen=True)
class Usage:
    case: str
    kernel: str
    arch: int
    registers: int
    stack: int  # bytes that one thread keeps in memory: what was spilled
    shared: int
    mma: int  # products on tensor cores
    roundings: int  # of float32 to TF32


class Recorder:
    """Stands for the module of kernels and keeps the launches instead of running them."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        recorder = self

        class Kernel:
            def __getitem__(self, grid: tuple[int, ...]) -> Any:
                return lambda *arguments, **options: recorder.launches.append((name, arguments, options))

        return Kernel()


def launches(case: Case) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Everything that forward and backward of one sample launch."""
    tokens, c, h = case.prefix + case.grid[0] * case.grid[1], case.channels, case.heads
    affine = torch.empty(c) if case.affine else None
    operands = Operands(torch.empty(1, tokens, c), affine, affine, torch.empty(h), torch.empty(h), torch.empty(h, 3))
    mask = torch.ones(1, tokens, dtype=torch.bool) if case.masked else None
    recorder = Recorder()
    real, launch.kernels = launch.kernels, lambda: recorder
    try:
        layout = Layout(case.grid, case.prefix)
        y, kept = launch.forward(operands, layout, mask)
        launch.backward(y, kept, operands, layout, mask)
    finally:
        launch.kernels = real
    return recorder.launches


def compiled(case: str, arch: int, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Usage:
    """As triton's own launcher would: a pointer or a size that 16 divides is declared so, a size of 1 becomes a constant."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(launch.kernels(), name)
    given = dict(zip(kernel.arg_names, arguments, strict=False))
    how = {key: options[key] for key in ("num_warps", "num_stages") if key in options}
    constants = {key: value for key, value in options.items() if key not in how}
    signature, attributes = {}, {}
    for place, key in enumerate(kernel.arg_names):
        value = given.get(key)
        if key in constants or value is None or (isinstance(value, int) and value == 1):
            signature[key] = "constexpr"
            constants.setdefault(key, value)
            continue
        signature[key] = KINDS[value.dtype] if isinstance(value, torch.Tensor) else "i32" if isinstance(value, int) else "fp32"
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=how)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    numbers = dict(re.findall(r"(REG|STACK):(\d+)", said))
    ptx = made.asm["ptx"]
    products = len(re.findall(r"mma\.sync|wgmma\.mma_async|tcgen05\.mma", ptx))
    shared, roundings = made.metadata.shared, ptx.count("cvt.rna.tf32")
    return Usage(case, name, arch, int(numbers["REG"]), int(numbers["STACK"]), shared, products, roundings)


def compile_all(cases: list[Case], archs: list[int], only: str = "") -> None:
    for case in cases:
        for name, arguments, options in launches(case):
            if only in name:
                for arch in archs:
                    print(json.dumps(asdict(compiled(case.name, arch, name, arguments, options))), flush=True)


if __name__ == "__main__":
    cases, archs, only = json.loads(sys.argv[1])
    compile_all([Case(**case) for case in cases], archs, only)
