"""`dynavit robust RUN...` on finished runs."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.usefixtures("nothing_is_drawn_in_this_file")

FEW = ("--corruptions", "fog,jpeg_compression", "--severities", "1,5", "--limit", "60")


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copy")


def test_a_table_files_and_the_page(run, copy):
    code, told, problem = run("robust", copy, *FEW, "--baseline", copy)
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
    code, told, problem = run("robust", copy, *FEW, "--json")
    assert (code, problem) == (0, "")
    written = json.loads((copy / "eval/robust/corruptions.json").read_text())
    assert json.loads(told) == {str(copy): {"corruptions": written}}


def test_the_first_of_several_runs_is_the_baseline(run, copy, trained, tmp_path):
    other = shutil.copytree(trained, tmp_path / "other")
    code, told, _ = run("robust", copy, other, *FEW, "--json")
    first, second = json.loads(told).values()
    assert code == 0 and first["corruptions"]["baseline"] is None
    assert second["corruptions"]["baseline"]["name"] == "copy" and second["corruptions"]["mce"] == pytest.approx(100)
    assert (copy / "report.html").is_file() and (other / "report.html").is_file()


def test_a_comparison_stands_for_its_finished_runs(run, trained, tmp_path):
    """Each run is compared with the baseline's run of the same seed; a run that has not finished is left out."""
    out = tmp_path / "grid"
    names = {(norm, seed): f"{norm}-seed{seed}" for norm in ("ln", "dtn") for seed in (0, 1)}
    for (_, seed), name in names.items():
        here = shutil.copytree(trained, out / name)
        options = yaml.safe_load((here / "config.yaml").read_text())
        (here / "config.yaml").write_text(yaml.safe_dump({**options, "seed": seed}))
    (out / "dtn-seed1" / "finished.json").unlink()
    settings = [{"name": n, "values": {"norm": n}, "runs": [names[n, 0], names[n, 1]]} for n in ("ln", "dtn")]
    about = {"title": "grid", "varied": ["norm"], "baseline": {"norm": "ln"}, "settings": settings, "seeds": [0, 1]}
    (out / "comparison.json").write_text(json.dumps(about))
    code, told, _ = run("robust", out, "--corruptions", "fog", "--severities", "1", "--limit", "20", "--json")
    assert code == 0
    against = {Path(name).name: found["corruptions"]["baseline"] for name, found in json.loads(told).items()}
    assert {name: found and found["name"] for name, found in against.items()} == {
        "ln-seed0": None,
        "ln-seed1": None,
        "dtn-seed0": "ln-seed0",
    }
    assert "Robustness" in (out / "report.html").read_text()


def test_nothing_to_evaluate(run):
    assert "give a directory of a run" in run("robust")[2]


def test_a_wrong_name(run, trained):
    code, told, problem = run("robust", trained, "--corruptions", "fogg")
    assert (code, told) == (2, "")
    assert "unknown corruption 'fogg'. Did you mean 'fog'" in problem
