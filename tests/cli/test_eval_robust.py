"""`dynavit eval RUN --robust` on a finished run."""

import json
import shutil

import pytest

FEW = ("--robust", "--corruptions", "fog,jpeg_compression", "--severities", "1,5", "--limit", "60")


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copy")


def test_a_table_files_and_the_page(run, copy):
    code, told, problem = run("eval", copy, *FEW, "--baseline", copy)
    assert code == 0
    written = json.loads((copy / "eval/robust/corruptions.json").read_text())
    lines = [line.split() for line in told.splitlines()]
    assert lines[1] == ["corruption", "severity", "1", "severity", "5", "mean", "CE", "against", "copy"]
    for name, errors in written["errors"].items():
        expected = [f"{100 * error:.1f}" for error in (*errors, sum(errors) / 2)]
        assert [name, *expected, "100.0"] in lines
    assert ["mCE", "100.0"] in lines
    assert ["gap", f"{100 * written['gap']:.1f}"] in lines
    assert f"{copy}: errors on corrupted images: test of digits, 60 images, in %" in told
    assert "note: mCE is over 2 of 15 corruptions" in told
    assert told.endswith(f"written to {copy / 'eval/robust/corruptions.json'}\nreport: {copy / 'report.html'}\n")
    assert "Robustness" in (copy / "report.html").read_text()
    assert "note: fog: error" in problem, "progress"


def test_json(run, copy):
    code, told, problem = run("eval", copy, *FEW, "--json")
    assert (code, problem) == (0, "")
    assert json.loads(told) == {"corruptions": json.loads((copy / "eval/robust/corruptions.json").read_text())}


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--baseline", "alexnet"], "--baseline"),
        (["--corruptions", "fog"], "--corruptions"),
        (["--severities", "1,2"], "--severities"),
        (["--limit", "3"], "--limit"),
        (["--exact"], "--exact"),
        (["--processes", "2"], "--processes"),
        (["--imagenet-c", "c"], "--imagenet-c"),
        (["--imagenet-r", "r"], "--imagenet-r"),
        (["--imagenet-a", "a"], "--imagenet-a"),
    ],
)
def test_options_without_robust(run, trained, words, option):
    message = f"dynavit: {option} is for --robust, which measures errors on corrupted images\n"
    assert run("eval", trained, *words) == (2, "", message)


def test_a_wrong_name(run, trained):
    code, told, problem = run("eval", trained, "--robust", "--corruptions", "fogg")
    assert (code, told) == (2, "")
    assert "unknown corruption 'fogg'. Did you mean 'fog'" in problem
