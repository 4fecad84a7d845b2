"""The script for somebody with a GPU runs, here with tiny shapes on the CPU, and says when a number is wrong."""

import importlib.util
from pathlib import Path

import pytest
import torch

from dynavit.bench.norms import Shape


@pytest.fixture
def script(monkeypatch):
    path = Path(__file__).parents[3] / "benchmarks/gpu_check.py"
    spec = importlib.util.spec_from_file_location("gpu_check", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    small = {
        "plain": (Shape(2, (4, 5), 6, 2), {"shift": 10.0, "num_prefix_tokens": 1}, False),
        "masked": (Shape(2, (6, 9), 6, 2), {"affine": False}, True),
    }
    monkeypatch.setattr(module, "CHECKS", small)
    monkeypatch.setattr(module, "SHAPES", {"A": Shape(1, (4, 4), 6, 2), "D": Shape(1, (20,), 6, 2)})
    return module


@pytest.mark.slow
def test_the_tables(script, capsys):
    assert script.main(["--device", "cpu", "--batch", "2", "--repeats", "1", "--no-model"]) == 0
    script.check_model(torch.device("cpu"), 1, 1, "test_vit", 32)
    said = capsys.readouterr().out
    assert said.startswith("cpu; torch ") and "All numbers are right." in said
    assert said.count("| the tokens are not on a CUDA GPU | ok |") == 2
    assert "| A: B=2, 4x4, C=6, H=2 | " in said and "| D: B=1, T=20, C=6, H=2 | " in said
    assert "| float32 | " in said and "| bf16 | " in said


def test_a_wrong_number_is_told(script, monkeypatch, capsys):
    plain = script.gradients
    monkeypatch.setattr(
        script, "gradients", lambda norm, x, *rest: plain(norm, x * (1 + 1e-3 * (norm.backend == "auto")), *rest)
    )
    assert not script.check_numbers(torch.device("cpu"))
    assert "**WRONG**" in capsys.readouterr().out
