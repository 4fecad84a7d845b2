"""The kernels compiled for GPUs, as far as that goes without one: to machine code, and what the assembler says of it.

In processes of their own: triton's mode is fixed at import, and another test may have asked for its interpreter.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARED_LIMIT = 99 * 1024  # bytes of shared memory that a program may have on every GPU since Ampere
PRODUCTS = {"forward_tile", "target_gradients", "source_gradients", "masses", "mass_gradients"}

A = {"name": "A", "grid": [14, 14], "channels": 432, "heads": 9}
C = {"name": "C", "grid": [56, 56], "channels": 64, "heads": 1}


def compile_for(archs: list[int], *cases: dict, only: str = "", tmp_path: Path) -> list[dict]:
    """What the compiler says of every kernel that forward and backward of these cases launch."""
    program = Path(__file__).with_name("compiling.py")
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(program), json.dumps([cases, archs, only])],
        env=env | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(usages: list[dict]) -> None:
    for usage in usages:
        assert usage["stack"] == 0, f"registers spilled to memory: {usage}"
        assert usage["shared"] <= SHARED_LIMIT, usage
        if usage["kernel"] in PRODUCTS:
            assert usage["mma"] and usage["roundings"], f"no TF32 tensor cores: {usage}"


EVERY_ENTRY = [
    pytest.param(A | {"prefix": 1, "masked": True}, id="A masked"),
    pytest.param(A | {"grid": [14, 28], "masked": True}, id="14x28 masked"),
    pytest.param(C | {"grid": [28, 28], "masked": True}, id="28x28 masked"),
    pytest.param(C | {"masked": True}, id="C masked"),
    pytest.param(A, id="A"),
    pytest.param(C, id="C"),
    pytest.param({"name": "small", "grid": [8, 8], "channels": 12, "heads": 6, "affine": False}, id="2 channels a head"),
    pytest.param({"name": "most", "grid": [16, 16], "channels": 4096, "heads": 64, "prefix": 5}, id="4096 channels"),
    pytest.param({"name": "one", "grid": [1, 1], "channels": 1, "heads": 1, "prefix": 1, "masked": True}, id="one token"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY_ENTRY)
def test_every_kernel_compiles_for_ampere_and_hopper(case, tmp_path):
    """Nothing spills, with masks too, in every entry of the table of tiles."""
    usages = compile_for([80, 90], case, tmp_path=tmp_path)
    assert {usage["kernel"] for usage in usages} >= {"axis_kernels", "token_moments", "forward_tile", "target_gradients"}
    check(usages)


@pytest.mark.slow
@pytest.mark.parametrize("case", [A, C], ids=["A", "C"])
def test_every_kernel_compiles_for_blackwell(case, tmp_path):
    check(compile_for([100], case, tmp_path=tmp_path))


@pytest.mark.slow
def test_the_check_can_fail(tmp_path):
    """sm_75 has no TF32: it compiles, but not to what the table was made for, and `supports` refuses it."""
    (usage,) = compile_for([75], A, only="forward_tile", tmp_path=tmp_path)
    assert usage["roundings"] == 0
    with pytest.raises(AssertionError):
        check([usage])
