"""`run_norm_bench` measures what it says, at shapes small enough for a test."""

import json

import pytest
import torch

from dynavit.bench import norms as bench
from dynavit.common.registry import UnknownNameError


@pytest.fixture
def small_shapes(monkeypatch):
    small = {"A": bench.Shape(2, (4, 4), 32, 4), "D": bench.Shape(1, (40,), 32, 4)}
    monkeypatch.setattr(bench, "SHAPES", small)
    monkeypatch.setattr(bench, "_SWEEP_GRIDS", (2, 4))
    monkeypatch.setattr(bench, "_SWEEP_TOKENS", 32)


@pytest.mark.slow
def test_every_norm_at_every_shape(small_shapes, tmp_path):
    """The released DTN is two-dimensional; DTN appears with both inits; the file holds what the tables show."""
    told = []
    result = bench.run_norm_bench(repeats=1, out=tmp_path / "deep" / "norms.json", progress=told.append)
    from dynavit.norms import list_norms

    count = len(list_norms()) + 2  # the baseline and DTN's second init
    assert [sum(row.shape == name for row in result.rows) for name in "AD"] == [count, count - 1]
    assert {row.norm for row in result.rows} >= {"nn.LayerNorm", "dtn (local)", "dtn (trunc_normal)"}
    baseline = result.rows[0]
    assert baseline.norm == "nn.LayerNorm" and baseline.training_ratio == (1, 1, 1) and baseline.saved_ratio == 1
    assert [title[:2] for title, _, _ in result.tables()] == ["A:", "D:", "dt"]
    stored = json.loads((tmp_path / "deep" / "norms.json").read_text())
    assert len(stored["rows"]) == len(result.rows) and len(stored["sweep"]) == 4
    assert stored["machine"]["torch"] and stored["machine"]["date"] and stored["machine"]["processor"]
    assert any("shape D" in message for message in told)


def test_growth_is_relative_to_the_smallest_grid():
    def row(side, nanoseconds):
        return bench.SweepRow((side, side), 1, "local", nanoseconds, (1.0, 1.0, 1.0))

    _, _, cells = bench.NormBench({}, [], [row(7, 100.0), row(28, 250.0)]).tables()[0]
    assert [line[3:5] for line in cells] == [["1.00", "1.00"], ["2.50", "4.00"]]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"norms": ["dtm"]}, "unknown norm 'dtm'. Did you mean .*'dtn'"),
        ({"shapes": ["Q"]}, "unknown shape 'Q'"),
    ],
)
def test_unknown_names(bad, message):
    with pytest.raises(UnknownNameError, match=message):
        bench.run_norm_bench(**bad)


def test_at_least_one_round():
    with pytest.raises(ValueError, match="at least 1; got 0"):
        bench.run_norm_bench(repeats=0)


def test_everything_stands_on_the_device(small_shapes, monkeypatch):
    """On "meta" a tensor left on the CPU is an error; the clock waits for the device, which the output names."""
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    monkeypatch.setattr(bench, "saved_bytes", lambda call, layer: 1)  # counted by address, and here all addresses are 0
    result = bench.run_norm_bench(["ln", "dtn"], ["A"], repeats=1, sweep=False, device="meta")
    assert {str(device) for device in waited} == {"meta"} and len(waited) == 2 * 2 * 4
    assert result.machine["device"] == "meta" and not result.machine["triton_dtn_kernel"]
    assert "on meta" in result.tables()[0][0]


def test_a_device_that_is_not_there():
    with pytest.raises(ValueError, match="the device 'cuda' cannot be used here"):
        bench.run_norm_bench(device="cuda")
