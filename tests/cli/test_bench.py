"""The command hands its options to the library and prints what it gets; the measuring itself is tested in tests/bench."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from dynavit.cli.main import main


class Result:
    def tables(self):
        return [("Shape A", ["norm", "time"], [["ln", "1.0x"], ["dtn", "3.9x"]]), ("Sweep", ["grid"], [["7"]])]


@pytest.fixture
def calls(monkeypatch):
    calls = []

    def run_norm_bench(**options):
        options.pop("progress")("timing ln at A")
        calls.append(options)
        if options["norms"] == ["lm"]:
            raise ValueError("unknown norm 'lm'. Did you mean 'ln'?")
        return Result()

    fake = ModuleType("dynavit.bench.norms")
    fake.run_norm_bench = run_norm_bench
    monkeypatch.setitem(sys.modules, "dynavit.bench", ModuleType("dynavit.bench"))
    monkeypatch.setitem(sys.modules, "dynavit.bench.norms", fake)
    return calls


DEFAULTS = {"norms": None, "shapes": None, "repeats": 30, "sweep": True, "device": None, "threads": None, "out": None}


def test_tables_go_to_stdout_and_progress_to_stderr(calls, capsys):
    assert main(["bench", "norms"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Shape A\nnorm  time\nln    1.0x\ndtn   3.9x\n\nSweep\ngrid\n   7\n\n"
    assert captured.err == "timing ln at A\n"
    assert calls == [DEFAULTS]


def test_at_a_terminal_progress_is_one_moving_line(calls, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["bench", "norms"]) == 0


@pytest.mark.parametrize("norms", ["ln,dtn", "ln, dtn", "[ln, dtn]"])
def test_lists_are_written_with_commas(calls, norms):
    assert main(["bench", "norms", "--norms", norms, "--shapes", "A", "--no-sweep", "--out", "x.json"]) == 0
    assert calls == [{**DEFAULTS, "norms": ["ln", "dtn"], "shapes": ["A"], "sweep": False, "out": Path("x.json")}]


def test_lists_in_a_file(calls, tmp_path):
    (tmp_path / "bench.yaml").write_text("norms: [ln, dtn]\nthreads: 1\n")
    assert main(["bench", "norms", "--config", str(tmp_path / "bench.yaml")]) == 0
    assert calls == [{**DEFAULTS, "norms": ["ln", "dtn"], "threads": 1}]


def test_an_unknown_norm_is_one_line(calls, capsys):
    assert main(["bench", "norms", "--norms", "lm"]) == 2
    assert capsys.readouterr().err.endswith("dynavit: unknown norm 'lm'. Did you mean 'ln'?\n")
