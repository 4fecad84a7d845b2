"""Commands begin with what they are about and end with what to do next, on stderr; --quiet and --json leave both out."""

import json
import re
import shutil

import pytest

from cli.tiny import TINY
from data.image_files import write_image

pytestmark = pytest.mark.usefixtures("nothing_is_drawn_in_this_file")


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "a run")


def labels(told):
    """The first words of the lines up to the first that is none of the overview's."""
    known = ("run", "runs", "data", "model", "norm", "memory", "device", "writes")
    return [line.split()[0] for line in told.splitlines() if line.split()[0] in known]


def test_training_says_what_it_trains_on_what(run, tmp_path):
    out = tmp_path / "x"
    _, told, about = run("train", *TINY, "--norm", "dtn", "--engine.threads", "1", "--out", out)
    assert labels(about)[:6] == ["data", "model", "norm", "memory", "device", "writes"]
    assert about.startswith("data    digits: 1,293 train, 360 test, 144 val images of 8x8, 10 classes\n")
    assert re.search(r"^model   vit_micro, 4x4 tokens, 51,954 parameters, 0\.000\d+ GMACs$", about, re.MULTILINE)
    assert "norm    2 dtn, 1 ln\n" in about
    assert "device  cpu, 1 thread, float32\n" in about
    assert f"writes  {out}\n" in about
    assert f"  dynavit eval {out}\n" in about and "next:\n" not in told
    assert (out / "report.html").is_file()


def test_a_directory_without_a_name_is_looked_at(run, tmp_path, monkeypatch):
    """It used to be ignored, and digits were trained on."""
    for kind in ("cat", "dog"):
        for number in range(3):
            write_image(tmp_path / "photos" / kind / f"{number}.png", number)
    monkeypatch.chdir(tmp_path)
    small = ("--loading.image_size", "32", "--loading.workers", "0", "--loading.val_fraction", "0.4", "--batch-size", "2")
    code, _, about = run("train", "--data-dir", "photos", *TINY[2:], *small, "--epochs", "1")
    assert code == 0
    assert about.startswith("data    folder in photos: 4 train, 2 val images of 32x32, 2 classes\n")
    assert "model   vit_mini, 8x8 tokens" in about
    config = (tmp_path / "runs" / "vit_mini-own-folder-seed0" / "config.yaml").read_text()
    assert "model: vit_mini\n" in config and "data: folder\n" in config
    code, _, problem = run("train", "--data-dir", "runs")
    assert code == 2 and "it holds neither folders of images" in problem


@pytest.mark.parametrize(
    "words",
    [
        ("eval",),
        ("fold",),
        ("robust", "--limit", "2", "--severities", "1", "--corruptions", "fog"),
        pytest.param(("analyze", "--images", "2", "--shown", "1"), marks=pytest.mark.slow),
    ],
)
def test_verbs_begin_with_the_run_and_end_with_next_steps(run, copy, words):
    verb, *options = words
    code, told, about = run(verb, copy, *options)
    assert code == 0
    assert about.startswith(f"run     {copy}, last checkpoint (step 4), model weights\n")
    assert labels(about)[-4:] == ["model", "norm", "device", "writes"]
    assert "model   vit_micro, 4x4 tokens, " in about
    assert about.rpartition("next:\n")[2].startswith("  ") and "next:" not in told


def test_quiet_and_json_leave_both_out(run, copy):
    assert run("eval", copy, "--quiet")[2] == ""
    code, told, about = run("eval", copy, "--json")
    assert (code, about) == (0, "") and json.loads(told)["samples"] == 360


def test_predictions_say_whose_they_are(run, copy):
    _, told, about = run("predict", copy, "--limit", "1")
    assert about.startswith(f"run     {copy}, last checkpoint") and told.startswith("digits test 0: ")
    assert run("predict", copy, "--limit", "1", "--json")[2] == ""


@pytest.mark.usefixtures("costs_in_few_rounds")
def test_a_comparison_says_what_it_compares(run, tmp_path):
    words = ("--norms", "ln,rms", "--seeds", "0", "--out", tmp_path / "x")
    _, _, about = run("compare", *TINY, *words)
    assert about.startswith("runs    2 settings under the seeds 0\ndata    digits: 1,293 train")
    assert "norm    ln, rms\n" in about and "next:\n" in about
    assert run("compare", *TINY, *words, "--quiet")[2] == ""


def test_next_steps_can_be_copied(capsys):
    from dynavit.cli.next_steps import tell_next

    tell_next((["eval", "a run"], "short"))
    assert capsys.readouterr().err == "next:\n  dynavit eval 'a run'  # short\n"
    tell_next((["eval", "x" * 70], "long"))
    assert capsys.readouterr().err == f"next:\n  # long\n  dynavit eval {'x' * 70}\n"


def test_next_steps_are_those_that_a_task_takes(copy, trained, tmp_path):
    """`dynavit robust` and `analyze` refuse detectors or sequences, so they are not named after them."""
    from dynavit.cli.next_steps import taken_by
    from dynavit.runs.report import task_of

    steps = [([word, copy], "") for word in ("robust", "analyze", "predict", "report")]

    def named(task):
        return [words[0] for words, _ in taken_by(task, steps)]

    everything = ["robust", "analyze", "predict", "report"]
    assert named(task_of([tmp_path / "nothing", trained])) == everything == named(task_of([tmp_path / "nothing"]))
    card = json.loads((copy / "model.json").read_text())
    (copy / "model.json").write_text(json.dumps({**card, "task": "detection"}))
    assert named(task_of([copy])) == ["analyze", "predict", "report"]
    (copy / "model.json").write_text(json.dumps({**card, "task": "listops"}))
    assert "analyze" not in named(task_of([copy])) and "robust" not in named(task_of([copy]))
