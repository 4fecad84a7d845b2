"""The kernels on CPU tensors, in triton's interpreter; in a process of its own, since triton's mode is fixed at import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("interpreted.py")


def interpret(*selection: str) -> None:
    """Run the checks of `interpreted.py`; what they print is shown if one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selection, str(CHECKS)]
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, cwd=CHECKS.parents[3], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_kernels_in_the_interpreter():
    interpret("-m", "not slow")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["float64", "not float64 and not tf32", "tf32"])
def test_all_kernels_in_the_interpreter(part):
    interpret("-m", "slow", "-k", part)
