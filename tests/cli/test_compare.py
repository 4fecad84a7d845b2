"""`dynavit compare` and the report of a comparison; the grid itself is tested in tests/test_compare.py."""

import json
import sys

import pytest

from cli.tiny import TINY
from dynavit.cli import compare as command

pytestmark = pytest.mark.usefixtures("nothing_is_drawn_in_this_file")


@pytest.fixture(autouse=True)
def no_timing(monkeypatch):
    monkeypatch.setattr("dynavit.bench.cost.training_costs", lambda contestants, baseline: [])


@pytest.mark.usefixtures("costs_in_few_rounds")
def test_a_grid_its_table_and_its_page(run, tmp_path):
    out = tmp_path / "x"
    words = ["compare", *TINY, "--norms", "ln,dtn", "--seeds", "0,1", "--title", "A title", "--out", out]
    code, told, progress = run(*words)
    assert code == 0
    lines = told.splitlines()
    assert lines[0] == "A title"
    assert [line.split()[0] for line in lines[2:4]] == ["ln", "dtn"]
    assert lines[-1] == f"report: {out / 'report.html'}"
    assert "[4/4] dtn-seed1: test top-1" in progress
    page = (out / "report.html").read_text()
    assert "A title" in page

    (out / "report.html").unlink()
    code, told, _ = run("report", out)
    assert (code, told) == (0, f"report: {out / 'report.html'}\n")
    assert "A title" in (out / "report.html").read_text()


def test_a_setting_that_fails_is_named_at_the_end(run, tmp_path):
    vary = json.dumps({"model_options.heads": [4, 7]})
    code, told, progress = run("compare", *TINY, "--norms", "ln", "--seeds", "0", "--vary", vary, "--out", tmp_path / "x")
    assert code == 2
    assert f"report: {tmp_path / 'x' / 'report.html'}" in told
    last = progress.splitlines()[-1]
    assert last.startswith("dynavit: 1 of 2 runs failed: ln-heads=7-seed0: ")
    assert "cannot be split into 7 heads" in last


def test_at_a_terminal_there_are_bars(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert isinstance(command.show_runs(), command.Bars)
    code, _, progress = run("compare", *TINY, "--norms", "ln", "--seeds", "0", "--out", tmp_path / "x")
    assert code == 0
    assert "ln-seed0: test top-1" in progress


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--norms", "ln,dnt"], "unknown norm 'dnt'"),
        (["--seeds", "a"], "--seeds: "),
        (["--vary", '{"lrr": [1]}'], "unknown option 'lrr'. Did you mean 'lr'"),
        (["--baseline", "rms"], "unknown baseline 'rms'"),
        (["--data", "digitz"], "unknown data set 'digitz'. Did you mean 'digits'"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_written(run, tmp_path, words, message):
    code, told, problem = run("compare", *words, "--out", tmp_path / "x")
    assert (code, told) == (2, "")
    assert message in problem
    assert problem.count("\n") == 1
    assert not (tmp_path / "x").exists()
