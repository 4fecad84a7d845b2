"""`dynavit analyze`: words to options, and what is printed."""

import json
import shutil

import pytest

pytestmark = pytest.mark.usefixtures("nothing_is_drawn_in_this_file")


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "a run")


def test_figures_and_page(run, copy, monkeypatch):
    monkeypatch.setattr("sys.argv", ["dynavit", "analyze", str(copy), "--images", "6"])
    code, told, notes = run("analyze", copy, "--images", "6", "--shown", "1", "--layers", "blocks.0.norm1", "--token", "0,1")
    assert code == 0
    assert told.splitlines() == [f"figures and their numbers: {copy / 'analysis'}", f"report: {copy / 'report.html'}"]
    assert "looking inside a run" in notes
    magnitudes = json.loads((copy / "analysis" / "magnitudes.json").read_text())["runs"][0]
    assert {each["path"] for each in magnitudes["maps"]} == {"blocks.0.norm1"}
    index = json.loads((copy / "analysis" / "index.json").read_text())
    assert index["command"] == f"dynavit analyze '{copy}' --images 6"
    assert (copy / "report.html").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "blocks.7.norm1"], "unknown layer 'blocks.7.norm1'"),
        (["--token", "0.5"], "--token takes two shares"),
        (["--token", "1,2"], "--token takes two shares"),
        (["--split", "vla"], "no split 'vla'; it has"),
        (["--images", "0"], "--images=0: a whole number at least 1"),
    ],
)
def test_mistakes(run, copy, words, message):
    (copy / "report.html").unlink()
    code, _, told = run("analyze", copy, *words)
    assert code == 2
    assert message in told
    assert not (copy / "report.html").exists()
