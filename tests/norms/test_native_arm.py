"""The C kernel on ARM: cross-compiled, run by an emulator, compared with the float64 oracle.

Needs Debian's gcc-aarch64-linux-gnu and qemu-user. The same program also runs on this processor, so that its reading and
writing is tested everywhere.
"""

import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import dynavit.norms.dtn.native.build as build
from dynavit.norms.dtn.native import kernel
from norms.dtn_cases import assert_close, cotangent, expect, layer, tokens

MAIN = Path(__file__).with_name("native_main.c")
MACHINES = {"here": ("gcc", []), "arm": ("aarch64-linux-gnu-gcc", ["qemu-aarch64"])}
CALLS = {
    "vectors and a rest": ((7, 11), 70, 5, {}),
    "axes shorter than a block": ((2, 3), 4, 2, {}),
    "a prefix": ((4, 5), 20, 4, {"num_prefix_tokens": 2}),
    "long axes": ((19, 34), 9, 3, {}),
    "a band": ((130,), 18, 9, {"ndim": 1, "kernel": "band", "radius": 8}),
    "one vector of a head": ((8, 8), 64, 4, {}),
}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name == "arm")) for name in MACHINES])
def programs(request, tmp_path_factory):
    """{dtype: command}"""
    compiler, emulator = MACHINES[request.param]
    missing = [program for program in (compiler, *emulator) if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    folder, commands = tmp_path_factory.mktemp(request.param), {}
    for dtype, flags in ((torch.float32, ["-DSINGLE"]), (torch.float64, [])):
        program = folder / f"main{len(flags)}"
        own = ["-O3" if emulator else "-O1", "-static", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Werror"]
        include = ["-I", str(build.KERNEL.sources)]
        subprocess.run([compiler, *own, *flags, *include, str(MAIN), "-o", str(program), "-lm", "-pthread"], check=True)
        commands[dtype] = [*emulator, str(program)]
    return commands


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_and_gradients(programs, dtype):
    for name, (grid, dim, heads, options) in CALLS.items():
        norm = layer(dim, heads, dtype=dtype, **options)
        x = tokens(2, norm.num_prefix_tokens + math.prod(grid), dim, dtype=dtype)
        parameters, mixing = norm._as_they_are()
        layout = norm.layout(x.shape[1], grid)
        call = kernel.prepare(x, parameters, mixing, layout).call._obj
        arrays = [part.detach().contiguous() for part in (x, *parameters, cotangent(x))]
        given = bytes(call) + b"".join(part.numpy().tobytes() for part in arrays)
        answer = subprocess.run(programs[dtype], input=given, capture_output=True, check=True).stdout
        numbers = torch.frombuffer(bytearray(answer), dtype=dtype)
        shapes = {"y": x, "x": x} | dict(norm.named_parameters())
        order = ("y", "x", "weight", "bias", "mean_logit", "var_logit", "position")
        parts = numbers.split([shapes[key].numel() for key in order])
        found = {key: part.view_as(shapes[key]) for key, part in zip(order, parts, strict=True)}
        radius = options.get("radius")
        for key, value in expect(norm, x, grid, None, radius).items():
            assert_close({key: found[key]}, {key: value}, 1e-11 if dtype == torch.float64 else 2e-5)
        assert found["y"].isfinite().all(), name
