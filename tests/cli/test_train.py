"""`dynavit train` from its words to its files, on digits."""

import json
import shutil
import subprocess
import sys

import pytest
import yaml

from cli.tiny import STEPS, TINY

FILES = [
    "checkpoints",
    "config.yaml",
    "env.json",
    "eval",
    "finished.json",
    "metrics.csv",
    "metrics.jsonl",
    "model.json",
    "report.html",
]


@pytest.fixture
def copy(trained, tmp_path):
    """A run that may be changed."""
    return shutil.copytree(trained, tmp_path / "copy")


def names(directory):
    return sorted(entry.name for entry in directory.iterdir())


def metrics(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def state(directory):
    """Every file with its time of change."""
    return {str(file): file.stat().st_mtime_ns for file in sorted(directory.rglob("*")) if file.is_file()}


def test_a_run_leaves_its_files_and_tells_what_it_reached(run, tmp_path):
    out = tmp_path / "x"
    code, told, progress = run("train", *TINY, "--norm", "dtn", "--seed", "3", "--batch-size", "64", "--out", out)
    assert code == 0
    assert names(out) == FILES
    result = json.loads((out / "eval" / "test.json").read_text())
    reached = f"  test: top-1 {result['top1']:.2%}, top-5 {result['top5']:.2%} of 360 images\n"
    assert told == f"{out}: {STEPS} steps\n{reached}report: {out / 'report.html'}\n"
    assert "validation: 144 of 1437 training images" in progress
    assert f"step {STEPS}/{STEPS}" in progress
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert (config["norm"], config["seed"], config["model_options"]["depth"]) == ("dtn", 3, 1)
    assert json.loads((out / "env.json").read_text())["seed"] == 3
    assert json.loads((out / "model.json").read_text())["data"] == {"name": "digits", "train": 1293, "test": 360, "val": 144}
    assert {line["split"] for line in metrics(out) if line["kind"] == "eval"} == {"val"}, "test is for the very end"


def test_the_directory_has_a_name_of_its_own_if_none_is_given(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("train", *TINY, "--norm", "rms", "--quiet", "--seed", "1")[0] == 0
    assert names(tmp_path / "runs") == ["vit_micro-rms-digits-seed1"]


def test_quiet_shows_no_progress_and_still_tells_the_end(run, tmp_path):
    code, told, progress = run("train", *TINY, "--quiet", "--out", tmp_path / "x")
    assert (code, progress) == (0, "")
    assert told.startswith(f"{tmp_path / 'x'}: {STEPS} steps\n")


def test_an_existing_directory_is_refused(run, copy):
    before = state(copy)
    code, told, problem = run("train", *TINY, "--out", copy)
    assert (code, told) == (2, "")
    assert problem == f"dynavit: {copy} exists and is not empty; choose another --out, or --resume or --overwrite it\n"
    assert state(copy) == before


def test_overwrite_begins_again(run, copy):
    old = (copy / "checkpoints" / "last" / "model.safetensors").read_bytes()
    assert run("train", *TINY, "--seed", "1", "--overwrite", "--out", copy)[0] == 0
    assert (copy / "checkpoints" / "last" / "model.safetensors").read_bytes() != old
    assert yaml.safe_load((copy / "config.yaml").read_text())["seed"] == 1


def test_overwrite_leaves_alone_what_is_no_run(run, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    code, _, problem = run("train", *TINY, "--overwrite", "--out", tmp_path)
    assert code == 2
    assert "does not look like a run directory" in problem
    assert names(tmp_path) == ["thesis.tex"]


def test_a_finished_run_is_left_as_it_is(run, copy):
    before = state(copy)
    code, told, progress = run("train", "--resume", "--out", copy)
    assert code == 0
    assert "is finished, nothing to do" in progress
    assert told.startswith(f"{copy}: {STEPS} steps\n")
    assert state(copy) == before


def test_resume_needs_only_the_directory(run, copy):
    """What is left after a kill at the end of training, before its last evaluation."""
    expected = json.loads((copy / "eval" / "test.json").read_text())
    (copy / "finished.json").unlink()
    shutil.rmtree(copy / "eval")
    assert run("train", f"--out={copy}", "--resume")[0] == 0
    again = json.loads((copy / "eval" / "test.json").read_text())
    assert again["confusion"] == expected["confusion"]
    assert yaml.safe_load((copy / "config.yaml").read_text())["model_options"]["depth"] == 1


def test_resume_with_other_options_is_refused(run, copy):
    before = state(copy)
    code, _, problem = run("train", "--resume", "--out", copy, "--lr", "0.5", "--optim.clip", "2")
    assert code == 2
    assert "cannot be resumed with other options: lr was 0.001, is 0.5, optim.clip was 1.0, is 2.0" in problem
    assert problem.count("\n") == 1
    assert state(copy) == before


def test_resume_may_change_what_only_says_where_and_how_fast(run, copy):
    assert run("train", "--resume", "--out", copy, "--loading.workers", "0", "--engine.device", "cpu")[0] == 0


def test_resume_without_a_run_starts_one(run, tmp_path):
    """A launcher that restarts what failed gives the same words each time."""
    code, _, progress = run("train", *TINY, "--resume", "--out", tmp_path / "new")
    assert code == 0
    assert "starting from the first step" in progress
    assert names(tmp_path / "new") == FILES


def test_a_recipe_by_its_name(run, tmp_path):
    assert run("train", "--config", "digits", *TINY, "--norm", "ln", "--quiet", "--out", tmp_path / "x")[0] == 0
    config = yaml.safe_load((tmp_path / "x" / "config.yaml").read_text())
    assert config["norm"] == "ln"
    assert config["optim"]["warmup_epochs"] == 3, "as the recipe says"


def test_a_run_starts_from_another(run, trained, tmp_path):
    """Zero steps would tell it best; four small ones leave the weights close to where they started."""
    from safetensors.torch import load_file

    out = tmp_path / "x"
    for _ in range(2):  # the second time over the first
        words = ["--init-from", trained, "--lr", "1e-9", "--quiet", "--out", out, "--overwrite"]
        assert run("train", *TINY, *words, "--seed", "5")[0] == 0
        started = load_file(trained / "checkpoints" / "last" / "model.safetensors")
        ended = load_file(out / "checkpoints" / "last" / "model.safetensors")
        assert max((started[name] - ended[name]).abs().max().item() for name in started) < 1e-6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "digitz"], "unknown data set 'digitz'. Did you mean 'digits'?"),
        (["--data", "folder"], "data folder needs data_dir"),
        (["--data", "cifar10"], "cifar10"),
        (["--model", "vit_mikro"], "unknown model 'vit_mikro'. Did you mean 'vit_micro'"),
        (["--norm", "dnt"], "unknown norm 'dnt'. Did you mean 'dyt' or 'dtn'"),
        (["--model_options.heads", "7"], "64 channels cannot be split into 7 heads"),
        (["--model_options.dept", "7"], "Did you mean 'depth'?"),
        (["--epochs", "0"], "epochs=0.0: a number greater than 0"),
        (["--batch_size", "-1"], "batch_size=-1: a whole number at least 1"),
        (["--augment.recipe", "deit"], "augment.recipe=deit is for image files"),
        (["--augment.padding", "2"], "augment.padding=2.0: a number at least 0 and at most 1"),
        (["--loading.val_fraction", "1.5"], "val_fraction=1.5"),
        (["--optim.clipp", "2"], "unknown option 'optim.clipp'. Did you mean 'optim.clip'"),
        (["--config", "digts"], "unknown recipe or file 'digts'. Did you mean 'digits'"),
        (["--init-from", "nowhere.pth"], "nowhere.pth"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_written(run, tmp_path, words, message):
    code, told, problem = run("train", *words, "--out", tmp_path / "x")
    assert (code, told) == (2, "")
    assert message in problem
    assert problem.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_python_dash_m(tmp_path):
    words = [sys.executable, "-m", "dynavit", "train", *TINY, "--out", str(tmp_path / "x")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'x'}: {STEPS} steps\n")
    assert json.loads((tmp_path / "x" / "env.json").read_text())["command"][:2] == ["dynavit", "train"]
