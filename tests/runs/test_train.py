"""Runs from Python: what the command line does is tested in tests/cli."""

import json

import pytest
import torch

import dynavit
from dynavit import TrainConfig, evaluate_run, train_run
from dynavit.data.config import DataConfig
from dynavit.engine.config import EmaConfig, EngineConfig
from dynavit.engine.progress import Progress
from dynavit.runs.config import from_plain, to_plain
from dynavit.runs.directory import RunDirectory
from dynavit.runs.predict import predict_run
from runs.notes import Notes

TINY = {"epochs": 0.2, "model_options": {"depth": 1, "norm_blocks": 1}}


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A run that keeps an average of its weights."""
    out = tmp_path_factory.mktemp("runs") / "averaged"
    summary = train_run(TrainConfig(norm="dtn", ema=EmaConfig(decay=0.9), **TINY), out)
    return out, summary


def test_a_summary(averaged):
    out, summary = averaged
    assert summary.steps == 4
    assert summary.best["weights"] == "ema"
    assert not summary.nothing_to_do
    again = train_run(from_plain(TrainConfig, RunDirectory(out).read_config()), out, resume=True)
    assert again.nothing_to_do
    assert again.best == summary.best


def test_averaged_weights_are_the_ones_that_are_evaluated(averaged):
    out, _ = averaged
    assert json.loads((out / "eval" / "test.json").read_text())["weights"] == "ema"
    plain, average = dynavit.load(out, weights="model"), dynavit.load(out)
    assert any(not torch.equal(a, b) for a, b in zip(plain.parameters(), average.parameters(), strict=True))
    ema, model = (evaluate_run(out, weights=weights) for weights in ("ema", "model"))
    assert ema["loss"] != model["loss"]


def test_without_a_validation_split_there_is_none(tmp_path):
    train_run(TrainConfig(loading=DataConfig(val_fraction=0), **TINY), tmp_path / "x")
    assert sorted(entry.name for entry in (tmp_path / "x" / "eval").iterdir()) == ["test.json"]
    assert not (tmp_path / "x" / "checkpoints" / "best").exists()
    with pytest.raises(ValueError, match="has no split 'val'"):
        evaluate_run(tmp_path / "x", split="val")


def test_patches_that_are_made_to_fit_are_mentioned(tmp_path):
    told = Notes()
    options = {"depth": 1, "norm_blocks": 1, "embed_dim": 16, "heads": 2, "class_token": "none"}
    train_run(TrainConfig(model="vit_tiny", epochs=0.1, model_options=options), tmp_path / "x", progress=told)
    assert "vit_tiny gets patches of 1 pixels to fit the images (model_options.patch_size)" in told.notes
    assert json.loads((tmp_path / "x" / "model.json").read_text())["model"]["patch_size"] == 1
    assert predict_run(tmp_path / "x", [write_digit(tmp_path / "0.png")], top=1)[0]["top"]


def write_digit(path):
    from PIL import Image

    Image.new("L", (8, 8), 128).save(path)
    return path


def test_other_images_are_not_the_same_run(tmp_path):
    """The options are the same, but somebody changed the data set under it."""
    config = TrainConfig(**TINY)
    train_run(config, tmp_path / "x")
    card = tmp_path / "x" / "model.json"
    card.write_text(card.read_text().replace("1293", "1300"))
    with pytest.raises(ValueError, match="cannot be resumed: its data had"):
        train_run(config, tmp_path / "x", resume=True)


def test_double_precision_goes_through_to_evaluation(tmp_path):
    train_run(TrainConfig(engine=EngineConfig(precision="float64"), **TINY), tmp_path / "x")
    assert next(dynavit.load(tmp_path / "x").parameters()).dtype == torch.float64
    assert evaluate_run(tmp_path / "x")["samples"] == 360
    assert predict_run(tmp_path / "x", [write_digit(tmp_path / "0.png")])[0]["label"]


def test_options_survive_their_file():
    config = TrainConfig(norm="dtn", lr=5e-4, model_options={"depth": 2}, loading=DataConfig(limit=5))
    assert from_plain(TrainConfig, to_plain(config)) == config
    with pytest.raises(ValueError, match="unknown option 'optim.clipp'. Did you mean 'optim.clip'"):
        from_plain(TrainConfig, {"optim": {"clipp": 1}})


def test_paths_may_be_strings(averaged):
    out, _ = averaged
    assert evaluate_run(str(out))["samples"] == 360
    with pytest.raises(ValueError, match="no such file"):
        predict_run(str(out), ["nowhere.png"])


@pytest.mark.parametrize(
    ("before", "after"), [({}, {"drop_path_rate": 0.5}), ({"drop_path_rate": 0.1}, {})], ids=["one more", "one less"]
)
def test_options_that_came_or_went_are_changes(tmp_path, before, after):
    first = {**TINY["model_options"], **before}
    train_run(TrainConfig(epochs=0.2, model_options=first), tmp_path / "run")
    other = TrainConfig(epochs=0.2, model_options={**TINY["model_options"], **after})
    with pytest.raises(ValueError, match="model_options.drop_path_rate was"):
        train_run(other, tmp_path / "run", resume=True)
    assert RunDirectory(tmp_path / "run").read_config()["model_options"] == first, "nothing was rewritten"


def test_an_evaluation_in_the_middle_is_not_the_result(tmp_path):
    class StopAfterTwo(Progress):
        def step(self, done):
            if done == 2:
                raise KeyboardInterrupt

    config = TrainConfig(**TINY, engine=EngineConfig(checkpoint_every=1))
    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "run", progress=StopAfterTwo())
    early = evaluate_run(tmp_path / "run")
    assert early["step"] < 4
    train_run(config, tmp_path / "run", resume=True)
    final = json.loads((tmp_path / "run" / "eval" / "test.json").read_text())
    assert final["step"] == 4 and final["loss"] != early["loss"]


def test_other_weights_have_a_file_of_their_own(averaged):
    out, _ = averaged
    before = (out / "eval" / "test.json").read_text()
    assert evaluate_run(out, weights="model")["file"].endswith("test-model.json")
    assert json.loads((out / "eval" / "test.json").read_text())["weights"] == json.loads(before)["weights"] == "ema"


def test_without_a_test_split_validation_is_evaluated(averaged):
    from dataclasses import replace

    from dynavit.data.open import open_data

    out, _ = averaged
    data = open_data("digits")
    data = replace(data, splits={name: split for name, split in data.splits.items() if name != "test"})
    assert evaluate_run(out, data=data)["split"] == "val"


def test_other_images_are_prepared_as_the_model_knows_them(averaged):
    from dataclasses import replace

    from dynavit.data.open import open_data

    out, _ = averaged
    data = open_data("digits")
    notes = Notes()
    renamed = replace(data, mean=(0.9,), std=(0.1,), classes=[f"digit {name}" for name in data.classes])
    assert evaluate_run(out, data=renamed, progress=notes)["loss"] == evaluate_run(out)["loss"]
    assert "classes have other names" in notes.notes[0]
