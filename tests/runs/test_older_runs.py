"""Run directories of before tasks had names: options, card and results in their older form are still understood."""

import json
import shutil

import pytest
import yaml

import dynavit
from dynavit.cli.main import main
from dynavit.runs.config import stored_config
from dynavit.runs.directory import RunDirectory
from dynavit.runs.model_files import ModelCard

pytestmark = pytest.mark.usefixtures("nothing_is_drawn_in_this_file")

CASCADE = ("--model", "dvt_vit_digits", "--model_options.depth", "1", "--epochs", "0.1", "--task.weights", "0.5,1", "--quiet")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A cascade's run as it was written then."""
    out = tmp_path_factory.mktemp("older") / "dvt"
    assert main(["train", *CASCADE, "--out", str(out)]) == 0
    run = RunDirectory(out)
    options = yaml.safe_load(run.config_file.read_text())
    for name in ("task", "task_options"):
        del options[name]
    del options["loading"]["options"]
    run.write_config({**options, "exit_weights": [0.5, 1.0]})
    card = json.loads(run.card_file.read_text())
    run.card_file.write_text(json.dumps({name: card[name] for name in ("model", "classes", "preprocess", "data", "fold")}))
    for file in run.evaluation_files():
        result = json.loads(file.read_text())
        younger = ("task", "main_metric", "metrics")
        file.write_text(json.dumps({name: value for name, value in result.items() if name not in younger}))
    return out


@pytest.fixture
def older(written, tmp_path):
    return shutil.copytree(written, tmp_path / "dvt")


def test_options_and_task_are_found(older):
    config = stored_config(RunDirectory(older))
    assert config.task_options == {"weights": [0.5, 1.0]} and config.task is None
    assert ModelCard.read(older).task == "early_exit"
    assert len(dynavit.load(older).exits) == 2


def test_results_are_shown(older, capsys):
    assert main(["report", str(older)]) == 0
    page = (older / "report.html").read_text()
    assert "top-1, %" in page and "Mistakes and samples" in page
    assert main(["train", "--out", str(older), "--resume", "--quiet"]) == 0
    assert "test: top-1" in capsys.readouterr().out


def test_it_goes_on_with_the_same_weights_of_losses_only(older, capsys):
    (older / "finished.json").unlink()
    assert main(["train", "--out", str(older), "--resume", "--quiet", "--task.weights", "1,1"]) == 2
    assert "task_options.weights was [0.5, 1.0], is [1.0, 1.0]" in capsys.readouterr().err
    assert main(["train", "--out", str(older), "--resume", "--quiet"]) == 0
    assert yaml.safe_load((older / "config.yaml").read_text())["task_options"] == {"weights": [0.5, 1.0]}
