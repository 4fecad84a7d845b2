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


# ---- Names of ours, at every depth


FOREIGN = ["eval/notes.txt", "eval/mine/x.json", "analysis/my_plot.svg", "checkpoints/last/thesis.tex", "checkpoints/epoch3.pt"]
FOREIGN += ["eval/results.json", "tensorboard/profile.pb", "analysis/extra.json", ".git/config", "empty/"]


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_at_any_depth_are_named_and_nothing_is_deleted(tmp_path, name):
    run = used(tmp_path / "run")
    own = run.path / name
    own.parent.mkdir(parents=True, exist_ok=True)
    own.mkdir() if name.endswith("/") else own.write_text("years of work")
    before = sorted(run.path.rglob("*"))
    with pytest.raises(ValueError, match=f"it holds .*'{name}'"):
        RunDirectory.create(run.path, overwrite=True)
    assert sorted(run.path.rglob("*")) == before


OURS = ["eval/test.json", "eval/cifar10-photos-val-best-model.json", "eval/robust/corruptions.json", "analysis/index.json"]
OURS += ["eval/robust/digits-0123456789/fog-1.json", "analysis/calibration.json", "analysis/lambda-0.svg", "policy.json"]
OURS += ["checkpoints/last/ema.safetensors", "checkpoints/.0123abcd.tmp/state.pt", "checkpoints/damaged/manifest.json"]
OURS += ["tensorboard/events.out.tfevents.1.host.2.0", "eval/.test.json.0123abcd.tmp", "metrics.csv", "report.html"]


def test_everything_of_ours_is_deleted(tmp_path):
    run = used(tmp_path / "run")
    for name in OURS:
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / name).touch()
    RunDirectory.create(run.path, overwrite=True)
    assert list(run.path.iterdir()) == []


def test_the_kinds_of_files_are_those_that_are_written():
    from dynavit.analysis.report.inside.draw_all import KINDS as DRAWN
    from dynavit.cli.robust import TITLES
    from dynavit.engine import checkpoint
    from dynavit.runs.directory import KINDS, ROBUSTNESS, RUN_NAMES

    assert set(KINDS) == set(DRAWN)
    assert set(ROBUSTNESS) == set(TITLES)
    for name in (checkpoint.MODEL, checkpoint.EMA, checkpoint.TASK, checkpoint.STATE, checkpoint.MANIFEST):
        assert RUN_NAMES.fullmatch(f"checkpoints/last/{name}")


def test_overwriting_a_comparison_deletes_its_own_files_alone(tmp_path):
    from dynavit.runs.directory import ComparisonDirectory

    grid = ComparisonDirectory(tmp_path / "grid")
    used(grid.run("ln,lr=0.1-seed0").path)
    grid.comparison_file.write_text("{}")
    for name in ("report.html", "analysis/magnitudes-3.png"):
        (grid.path / name).parent.mkdir(exist_ok=True)
        (grid.path / name).touch()
    for name in ("thesis.tex", "ln,lr=0.1-seed0/eval/notes.md"):
        own = grid.path / name
        own.parent.mkdir(exist_ok=True)
        own.write_text("mine")
        before = sorted(grid.path.rglob("*"))
        with pytest.raises(ValueError, match=f"also holds .*'{name}', so it is not overwritten"):
            grid.clear()
        assert sorted(grid.path.rglob("*")) == before
        own.unlink()
    grid.clear()
    assert list(grid.path.iterdir()) == []


# ---- What can be resumed


@pytest.mark.parametrize(
    "files",
    [["metrics.jsonl", "env.json"], ["manifest.json", "model.onnx"], ["config.yaml", "train.py"], ["checkpoints/x.ckpt"]],
)
def test_a_directory_that_is_no_run_is_not_resumed(tmp_path, files):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(
        ValueError, match="holds no run that could be resumed, but .*; nothing was changed: choose another --out"
    ):
        RunDirectory.create(tmp_path, resume=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("files", [[], [".lock"], [".config.yaml.01234567.tmp"], ["config.yaml"], ["config.yaml", "env.json"]])
def test_a_start_that_was_killed_before_it_began_can_be_resumed(tmp_path, files):
    for name in files:
        (tmp_path / name).write_text("{}\n")
    RunDirectory.create(tmp_path, resume=True)
