"""A run goes on only as it began, whatever happened to its files since."""

import json
import shutil

import pytest
import yaml

from dynavit import TrainConfig, evaluate_run, train_run
from dynavit.cli.main import main
from dynavit.engine.config import EmaConfig, EngineConfig
from dynavit.engine.log import read_log
from dynavit.engine.progress import Progress
from dynavit.runs.report import write_report

pytestmark = pytest.mark.usefixtures("nothing_is_drawn_in_this_file")

OPTIONS = {"epochs": 0.2, "lr": 3e-3, "ema": EmaConfig(decay=0.5), "model_options": {"depth": 1, "norm_blocks": 1}}
CONFIG = TrainConfig(**OPTIONS, engine=EngineConfig(checkpoint_every=1, log_every=1))
STEPS = 4


class StopAfter(Progress):
    def __init__(self, steps):
        self.steps, self.notes = steps, []

    def step(self, done):
        if done == self.steps:
            raise KeyboardInterrupt

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    with pytest.raises(KeyboardInterrupt):
        train_run(CONFIG, out, progress=StopAfter(3))
    return out


@pytest.fixture
def run(interrupted, tmp_path):
    return shutil.copytree(interrupted, tmp_path / "run")


def content(directory):
    return {file: file.read_bytes() for file in sorted(directory.rglob("*")) if file.is_file()}


def edit(run, **options):
    config = run / "config.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | options))


def cut(run):
    """A copy that was interrupted: still YAML, and without what comes after the learning rate's line."""
    config = run / "config.yaml"
    config.write_text(config.read_text().partition("\nlr:")[0] + "\n")


def break_(run):
    config = run / "config.yaml"
    config.write_text(config.read_text().partition("betas:")[0] + "betas: [0.9,\n")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda run: edit(run, lr=0.1), "config.yaml is not the one of its checkpoints any more: lr was 0.003, is 0.1; bring"),
        (lambda run: edit(run, ema={"decay": 0.0}), "ema.decay was 0.5, is 0.0"),
        (cut, "config.yaml is not the one of its checkpoints any more: "),
        (break_, "config.yaml is damaged, bring it back as it was: while parsing"),
        (
            lambda run: (run / "config.yaml").unlink(),
            "config.yaml is missing, and these are not the options of its checkpoints: ",
        ),
    ],
    ids=["edited", "other average", "cut at a line", "cut in a line", "lost"],
)
def test_lost_and_edited_options_are_noticed_and_not_rewritten(run, capsys, harm, message):
    harm(run)
    before = content(run)
    assert main(["train", "--resume", "--quiet", "--out", str(run)]) == 2
    problem = capsys.readouterr().err
    assert message in problem and problem.count("\n") == 1
    assert content(run) == before


def test_lost_options_that_are_given_again_go_on(run, tmp_path):
    (run / "config.yaml").unlink()
    assert train_run(CONFIG, run, resume=True).steps == STEPS
    assert yaml.safe_load((run / "config.yaml").read_text())["lr"] == 3e-3


def test_a_checkpoint_from_before_goes_by_the_files(run):
    for file in (run / "checkpoints").glob("*/manifest.json"):
        manifest = json.loads(file.read_text())
        del manifest["depends_on"]
        file.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="cannot be resumed with other options: lr was 0.003, is 0.5; leave them out"):
        train_run(TrainConfig(**OPTIONS | {"lr": 0.5}, engine=CONFIG.engine), run, resume=True)
    assert train_run(CONFIG, run, resume=True).steps == STEPS


def test_a_card_that_says_other_pixels_is_noticed(run):
    card = json.loads((run / "model.json").read_text())
    card["preprocess"]["mean"] = [0.9]
    (run / "model.json").write_text(json.dumps(card))
    before = content(run)
    with pytest.raises(ValueError, match="its images were prepared with mean"):
        train_run(CONFIG, run, resume=True)
    assert content(run) == before


def test_a_folded_run_is_not_trained_on(tmp_path, capsys):
    from dynavit.runs.fold import fold_run

    train_run(TrainConfig(norm="ldfn", epochs=0.2, model_options=OPTIONS["model_options"]), tmp_path / "run")
    fold_run(tmp_path / "run", tmp_path / "folded")
    before = content(tmp_path / "folded")
    assert main(["train", "--resume", "--quiet", "--out", str(tmp_path / "folded")]) == 2
    assert "a folded model cannot be trained on" in capsys.readouterr().err
    assert content(tmp_path / "folded") == before


def test_weights_are_called_what_they_are_whatever_the_options_say(run):
    """The average was kept, so it is the usual choice, and the other one is named."""
    edit(run, ema={"decay": 0.0})
    assert evaluate_run(run)["weights"] == "ema"
    other = evaluate_run(run, weights="model")
    assert other["weights"] == "model" and other["file"].endswith("test-model.json")
    assert evaluate_run(run, weights="ema")["file"].endswith("test.json")


# ---- The log


def test_a_log_that_was_cut_off_is_repaired_and_that_is_noted(run):
    log = run / "metrics.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])  # in the middle of a line
    told = StopAfter(-1)
    train_run(CONFIG, run, resume=True, progress=told)
    lines = read_log(log)
    assert len(lines) == len(log.read_bytes().splitlines()), "every line is whole"
    steps = [line["step"] for line in lines if line["kind"] == "train"]
    assert steps == [1, 3, 4], "only the line that was cut has gone"
    (note,) = (line["text"] for line in lines if line["kind"] == "note")
    assert f"metrics.jsonl had {len(whole)} bytes at step 2 and" in note and note in told.notes
    assert note in write_report(run).read_text()


def test_a_log_that_was_deleted_is_noted(run):
    (run / "metrics.jsonl").unlink()
    train_run(CONFIG, run, resume=True)
    assert "and 0 of them are left" in next(line["text"] for line in read_log(run / "metrics.jsonl") if line["kind"] == "note")


def test_a_log_with_damaged_lines_is_shown_without_them(run):
    log = run / "metrics.jsonl"
    first, *rest = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(first[:9] + first + b"[1]\n" + b"".join(rest) + b'{"kind": "tra')
    assert "damaged lines of metrics.jsonl are left out, 2 in all: number 1, 2" in write_report(run).read_text()
    assert len((run / "metrics.csv").read_text().splitlines()) == 1 + len(rest)


# ---- A start that fails


def test_a_start_that_fails_leaves_nothing_that_blocks_the_next(tmp_path, monkeypatch):
    import dynavit.runs.train

    def fail(*args, **options):
        raise ValueError("no")

    with monkeypatch.context() as patched:
        patched.setattr(dynavit.runs.train, "train", fail)
        with pytest.raises(ValueError, match="no"):
            train_run(CONFIG, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    assert train_run(CONFIG, tmp_path / "run").steps == STEPS


def test_a_start_that_fails_keeps_results_that_were_there(run, monkeypatch):
    """Somebody deleted checkpoints to save space, and resumes by mistake."""
    import dynavit.runs.train

    shutil.rmtree(run / "checkpoints")
    (run / "metrics.jsonl").write_text("")
    (run / "eval").mkdir()
    (run / "eval" / "test.json").write_text("{}")
    before = sorted(run.rglob("*"))
    monkeypatch.setattr(dynavit.runs.train, "train", None)
    with pytest.raises(TypeError):
        train_run(CONFIG, run, resume=True)
    assert sorted(run.rglob("*")) == before


def test_a_missing_extra_is_told_before_an_old_run_is_overwritten(run, monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    before = content(run)
    words = ["train", "--engine.tensorboard", "true", "--quiet", "--out"]
    assert main([*words, str(run), "--overwrite"]) == 2
    assert "pip install" in capsys.readouterr().err
    assert content(run) == before
    assert main([*words, str(run.parent / "new")]) == 2
    assert not (run.parent / "new").exists()


def test_a_training_that_fails_later_keeps_its_log(tmp_path):
    class Fail(StopAfter):
        def step(self, done):
            if done == 2:
                raise ValueError("at step 2")

    config = TrainConfig(**OPTIONS, engine=EngineConfig(log_every=1))
    with pytest.raises(ValueError, match="at step 2"):
        train_run(config, tmp_path / "run", progress=Fail(-1))
    assert [line["step"] for line in read_log(tmp_path / "run" / "metrics.jsonl") if line["kind"] == "train"] == [1]
    assert train_run(config, tmp_path / "run", resume=True).steps == STEPS
