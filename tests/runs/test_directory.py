"""When a directory may be used for a run, and what is deleted."""

import json

import pytest

from dynavit.runs.directory import RunDirectory


def used(path):
    run = RunDirectory.create(path)
    run.write_config({"model": "vit", "lr": 0.1})
    run.metrics_file.write_text("{}\n")
    (run.checkpoints / "last").mkdir(parents=True)
    return run


def test_a_new_or_empty_directory_is_taken(tmp_path):
    RunDirectory.create(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    RunDirectory.create(tmp_path / "a" / "b")


def test_an_existing_run_is_refused_unless_asked_for(tmp_path):
    used(tmp_path / "run")
    with pytest.raises(ValueError, match="exists and is not empty; choose another --out, or --resume or --overwrite"):
        RunDirectory.create(tmp_path / "run")
    with pytest.raises(ValueError, match="not both"):
        RunDirectory.create(tmp_path / "run", resume=True, overwrite=True)
    run = RunDirectory.create(tmp_path / "run", resume=True)
    assert run.metrics_file.is_file() and (run.checkpoints / "last").is_dir()


def test_overwriting_empties_a_run(tmp_path):
    run = used(tmp_path / "run")
    (run.path / ".env.json.12ab.tmp").write_text("half")  # the remains of an interrupted write
    RunDirectory.create(run.path, overwrite=True)
    assert list(run.path.iterdir()) == []


@pytest.mark.parametrize("own", ["thesis.tex", ".git"])
def test_overwriting_never_touches_what_is_not_a_run(tmp_path, own):
    run = used(tmp_path / "run")
    (run.path / own).write_text("years of work")
    with pytest.raises(ValueError, match=f"does not look like a run directory .it holds '{own}'"):
        RunDirectory.create(run.path, overwrite=True)
    assert run.metrics_file.is_file() and (run.path / own).is_file()


def test_overwriting_needs_a_config(tmp_path):
    (tmp_path / "eval").mkdir()
    with pytest.raises(ValueError, match="no config.yaml"):
        RunDirectory.create(tmp_path, overwrite=True)
    assert (tmp_path / "eval").is_dir()


def test_what_a_linked_directory_points_to_is_kept(tmp_path):
    run = used(tmp_path / "run")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("kept")
    (run.path / "eval").symlink_to(elsewhere)
    RunDirectory.create(run.path, overwrite=True)
    assert (elsewhere / "file").read_text() == "kept"


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="file is a file"):
        RunDirectory.create(tmp_path / "file")


def test_small_files(tmp_path):
    run = RunDirectory.create(tmp_path / "run")
    config = {"model": "größer", "optim": {"betas": [0.9, 0.99]}, "epochs": 3}
    run.write_config(config)
    assert run.read_config() == config
    run.write_env(seed=3, device="cpu", command="dynavit train")
    env = json.loads((run.path / "env.json").read_text())
    assert env["seed"] == 3 and {"python", "torch", "timm", "dynavit", "commit"} <= env.keys()
    assert json.loads(run.write_evaluation("test", {"top1": 0.5}).read_text()) == {"top1": 0.5}
    assert run.finished() is None
    run.mark_finished({"steps": 4, "best": None})
    assert run.finished() == {"steps": 4, "best": None}


def test_results_that_json_does_not_know_become_null(tmp_path):
    path = RunDirectory.create(tmp_path / "run").write_evaluation("test", {"loss": float("nan"), "per": [1.0, float("inf")]})
    assert json.loads(path.read_text()) == {"loss": None, "per": [1.0, None]}


def test_something_else_is_not_a_run(tmp_path):
    with pytest.raises(ValueError, match="not a run directory"):
        RunDirectory(tmp_path).read_config()
    (tmp_path / "config.yaml").write_text("- a list")
    with pytest.raises(ValueError, match="names and values, found list"):
        RunDirectory(tmp_path).read_config()
