"""Guests go through every door: a norm, a task and a data set, each one file outside the package, and nothing else."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import dynavit
from dynavit.common.plugins import load_plugin

pytestmark = pytest.mark.usefixtures("no_guest_stays", "nothing_is_drawn_in_this_file")

HERE = Path(__file__).parent
NORM = Path(__file__).parents[2] / "examples" / "my_norm.py"
TASK, DATA = HERE / "rotation.py", HERE / "stripes.py"
ALL = ("--plugin", NORM, "--plugin", TASK, "--plugin", DATA)
SMALL = ("--model_options.depth", "1", "--model_options.norm_blocks", "1")
OPTIONS = ("--norm", "mine", "--task", "rotation", "--task.turns", "2", "--data", "stripes", "--batch-size", "16", *SMALL)


def weights(run):
    return load_file(run / "checkpoints" / "last" / "model.safetensors")


def test_train_kill_resume_eval_predict_report(run, tmp_path):
    train = ("train", *ALL, *OPTIONS, "--epochs", "2", "--engine.checkpoint_every", "4", "--engine.device", "cpu", "--quiet")
    assert run(*train, "--out", tmp_path / "whole")[0] == 0
    dead = called([sys.executable, HERE / "killed.py", "9", *train, "--out", tmp_path / "killed"], check=False)
    assert dead.returncode == -signal.SIGKILL and not (tmp_path / "killed" / "finished.json").exists()
    code, told, _ = run("train", *ALL, "--out", tmp_path / "killed", "--resume", "--quiet")
    assert code == 0 and "val: angle error, degrees" in told
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)

    out = tmp_path / "whole"
    code, told, _ = run("eval", out, *ALL)
    result = json.loads((out / "eval" / "val.json").read_text())  # there is no test split
    assert code == 0 and f"{result['degrees']:.1f}" in told and "angle error, degrees" in told
    assert (result["task"], result["main_metric"], result["samples"]) == ("rotation", "degrees", 30)
    best = json.loads((out / "finished.json").read_text())["best"]
    logged = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert best["value"] == min(line["degrees"] for line in logged if line["kind"] == "eval")

    from PIL import Image

    Image.new("L", (8, 8), 90).save(tmp_path / "grey.png")
    code, told, _ = run("predict", out, tmp_path / "grey.png", *ALL)
    assert code == 0 and told.strip() in [f"{tmp_path / 'grey.png'}: degrees {angle}" for angle in (0, 180)]
    code, _, problem = run("export", out, *ALL)
    assert code == 2 and "a bundle gives classes or features of images, and its task 'rotation' gives neither" in problem
    assert run("report", out, *ALL)[0] == 0
    assert f"The mean error is {result['degrees']:.1f}°." in (out / "report.html").read_text()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run of all three guests, trained by another process; the norm's file is a copy that tests may change."""
    place = tmp_path_factory.mktemp("elsewhere")
    norm = place / "mine.py"
    norm.write_text(NORM.read_text())
    plugins = ("--plugin", norm, "--plugin", TASK, "--plugin", DATA)
    words = ("train", *plugins, *OPTIONS, "--epochs", "0.2", "--out", place / "run", "--quiet")
    called([sys.executable, "-m", "dynavit", *words], check=True, capture_output=True)
    return place / "run"


def called(words, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([str(word) for word in words], env=environment, **options)


def test_a_run_remembers_its_guests(finished):
    guests = json.loads((finished / "model.json").read_text())["guests"]
    files = {(guest["kind"], guest["name"]): Path(guest["file"]) for guest in guests}
    assert files == {("norm", "mine"): finished.with_name("mine.py"), ("task", "rotation"): TASK, ("data set", "stripes"): DATA}
    assert all(guest["sha256"] == hashlib.sha256(Path(guest["file"]).read_bytes()).hexdigest() for guest in guests)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ((), r"the norm 'mine' of .*mine\.py \(SHA-256 \w{8}…\)"),
        (("mine.py", DATA), r"the task 'rotation' of .*rotation\.py"),
        (("mine.py", TASK), r"the data set 'stripes' of .*stripes\.py"),
    ],
)
def test_a_run_refuses_without_them_and_imports_nothing_by_itself(run, finished, given, missing):
    files = [finished.parent / file for file in given]
    before = set(sys.modules)
    code, told, problem = run("eval", finished, *(word for file in files for word in ("--plugin", file)))
    assert (code, told) == (2, "") and re.search(missing, problem) and "--plugin FILE.py" in problem
    stems = {name for name in set(sys.modules) - before if name.startswith("dynavit_plugin_")}
    assert all(any(file.stem in name for file in files) for name in stems)


def test_a_page_without_the_plugin_says_what_is_left_out(run, finished):
    assert run("report", finished)[0] == 0
    page = (finished / "report.html").read_text()
    assert "angle error, degrees" in page, "how a metric is read stands in the files"
    assert "sections of the task &#39;rotation&#39; are left out" in page


def test_a_file_that_changed_is_told_and_not_resumed(run, finished):
    norm = finished.with_name("mine.py")
    norm.write_text(norm.read_text() + "\n")
    plugins = ("--plugin", norm, "--plugin", TASK, "--plugin", DATA)
    code, _, problem = run("train", *plugins, "--out", finished, "--resume")
    assert code == 2 and "mine.py, which defines its norm 'mine', has changed since" in problem
    with pytest.warns(UserWarning, match=r"mine\.py defines the norm 'mine' and has changed since"):
        dynavit.load(finished)
    norm.write_text(NORM.read_text())


@pytest.mark.usefixtures("costs_in_few_rounds")
@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_compare_and_a_page(run, tmp_path, processes):
    out = tmp_path / "grid"
    grid = ("--norms", "ln,mine", "--epochs", "0.2", "--processes", processes, "--title", "Turned stripes")
    options = [word for word in OPTIONS if word not in ("--norm", "mine")]
    code, told, problem = run("compare", *ALL, *options, *grid, "--out", out)
    assert code == 0, problem
    assert "angle error, degrees" in told and "mine" in told
    page = (out / "report.html").read_text()
    assert "Lower is better" in page and "mine" in page and "angle error, degrees" in page and "The mean error is" in page
    stored = json.loads((out / "comparison.json").read_text())
    assert {cost["name"] for cost in stored["cost"]} == {"ln", "mine"} and stored["failures"] == {}


def test_bench(run, tmp_path):
    out = tmp_path / "norms.json"
    words = ("--plugin", NORM, "--norms", "ln,mine", "--shapes", "B", "--repeats", "2", "--no-sweep", "--out", out)
    code, told, _ = run("bench", "norms", *words)
    assert code == 0 and "mine" in told


def test_lists(run):
    assert "share 1 is LayerNorm" in run("list", "norms", "--plugin", NORM)[1]
    assert (
        "quarter turns" in run("list", "tasks", "--plugin", TASK)[1]
        and "--task.turns" in run("list", "tasks", "--plugin", TASK)[1]
    )
    assert "Made-up stripes" in run("list", "data", "--plugin", DATA)[1]
    assert "--task.turns" in run("train", "--help", "--plugin", TASK)[1]


def test_swap_into_a_model_of_timm_and_fold():
    load_plugin(NORM)
    torch.manual_seed(0)
    import timm

    model = timm.create_model("test_vit", num_classes=5).eval()
    swapped = dynavit.swap_norms(model, "mine", start="identity").eval()
    images = torch.randn(2, 3, 160, 160)
    torch.testing.assert_close(swapped(images), model(images))
    folded = dynavit.fold(swapped)
    torch.testing.assert_close(folded(images), swapped(images), rtol=1e-4, atol=1e-4)
    assert folded.fold_report.count("partly") > 0, "weight and bias go into the next layer"


@pytest.mark.slow  # guests of exports by default: test_guests.py of norms; the commands: cli/test_export.py
def test_train_fold_and_export(run, tmp_path):
    out = tmp_path / "run"
    assert run("train", "--plugin", NORM, "--norm", "mine", "--epochs", "0.2", *SMALL, "--out", out, "--quiet")[0] == 0
    assert run("fold", out, "--plugin", NORM)[0] == 0
    code, _, problem = run("export", tmp_path / "run-folded", "--plugin", NORM)
    assert code == 0, problem
    assert (tmp_path / "run-folded-onnx" / "model.onnx").is_file()


def test_from_python_without_a_file(tmp_path):
    @dynavit.register_norm("session")
    class Session(dynavit.Norm):
        """A norm of this session."""

        def normalise(self, x, grid, mask):
            return x / (1 + x.abs())

    config = dynavit.TrainConfig(norm="session", epochs=0.1, model_options={"depth": 1, "norm_blocks": 1})
    dynavit.train_run(config, tmp_path / "run")
    assert isinstance(dynavit.load(tmp_path / "run"), torch.nn.Module)
    (guest,) = json.loads((tmp_path / "run" / "model.json").read_text())["guests"]
    assert guest["name"] == "session" and guest["file"] == str(Path(__file__))


def test_bad_names_and_options_are_told(run, tmp_path):
    out = ("--out", tmp_path / "x", "--quiet")
    assert "unknown task 'rotatoin'. Did you mean 'rotation'" in run("train", "--plugin", TASK, "--task", "rotatoin", *out)[2]
    told = run("train", "--plugin", TASK, "--task", "rotation", "--task.turn", "4", *out)[2]
    assert "unknown option 'task.turn'. Did you mean 'task.turns'" in told
    assert "--plugin needs a file" in run("train", "--plugin")[2]
    assert "no such file" in run("train", "--plugin", tmp_path / "nowhere.py")[2]
    assert not (tmp_path / "x").exists()
