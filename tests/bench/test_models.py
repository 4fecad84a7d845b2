"""`run_model_bench` on tiny models: the arithmetic of its tables, not the clock."""

import json

import pytest
import torch

from dynavit.bench import models as bench
from dynavit.common.registry import UnknownNameError


def test_sizes_of_vit_small_star():
    """The figures of the specification: S* with DTN in both norms of ten blocks, by the separable form."""
    row = bench._measure_size(next(row for row in bench.PAPER if row.label == "ViT-S*"))
    assert (row.parameters_ln, row.parameters_dtn) == (27_777_304, 27_776_872 + 20 * 5 * 9)
    assert round(row.gmacs_ln, 3) == 5.762
    assert round(row.gmacs_dtn, 2) == 5.83


def test_steps_are_measured_against_ln(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "STEP_MODELS", {"test_vit": "tiny"})
    monkeypatch.setattr(bench, "PAPER", [bench.PaperRow("tiny", "test_vit", {}, None, 1.0, None)])
    monkeypatch.setattr(bench, "_peak_megabytes", lambda name, arm, *_: {"ln": 10.0}.get(arm, 12.0))
    out = tmp_path / "models.json"
    result = bench.run_model_bench(models=["test_vit"], sizes=False, repeats=2, batch=2, img_size=32, device="cpu", out=out)
    assert [row.arm for row in result.steps] == ["ln", "dtn (local)", "dtn (trunc_normal)"]
    assert result.steps[0].ratio == (1, 1, 1)
    assert [row.peak_ratio for row in result.steps] == [1.0, 1.2, 1.2]
    (title, header, rows), *rest = result.tables()
    assert not rest
    assert title == "Training step, batch 2, 32 px, on cpu" and len(rows) == 3 and len(header) == len(rows[0])
    assert len(json.loads(out.read_text())["steps"]) == 3


@pytest.mark.slow
def test_peak_memory_grows_with_the_batch():
    """Measured in a process of its own, which does not inherit what this one has used."""
    held = torch.ones(50_000_000)  # 200 MB here must not show there
    small, large = (bench._peak_megabytes("test_vit", "ln", batch, 32, torch.device("cpu")) for batch in (1, 256))
    assert held.sum() > 0
    if small is not None and large is not None:
        assert 0 < small < large < 400


@pytest.mark.slow  # by default: the norms alone in test_norms.py, the clock in test_training.py
def test_steps_on_another_device(monkeypatch):
    """On "meta" a tensor left on the CPU is an error. Nobody counts memory there."""
    monkeypatch.setattr(bench, "STEP_MODELS", {"test_vit": "tiny"})
    monkeypatch.setattr(bench, "PAPER", [bench.PaperRow("tiny", "test_vit", {}, None, 1.0, None)])
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    result = bench.run_model_bench(["test_vit"], sizes=False, repeats=1, batch=2, img_size=32, device="meta")
    assert [row.peak_mb for row in result.steps] == [None] * 3 and result.machine["device"] == "meta"
    assert len(waited) == 2 * 3


def test_unknown_model():
    with pytest.raises(UnknownNameError, match="unknown model of this benchmark 'vit_smal'. Did you mean 'vit_small'"):
        bench.run_model_bench(models=["vit_smal"])
