"""A run's directory gives its model back, exactly."""

import inspect
import json
import shutil
from pathlib import Path

import pytest
import torch

import dynavit
from dynavit.data.loader import make_loader
from dynavit.data.open import open_data
from dynavit.engine.checkpoint import Snapshot, write_checkpoint
from dynavit.engine.config import EmaConfig, EngineConfig


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two tenths of an epoch on digits: enough to have weights, averages, a best checkpoint and an evaluation."""
    out = tmp_path_factory.mktemp("runs") / "digits"
    options = {"depth": 1, "embed_dim": 16, "heads": 4}
    dynavit.train_run(
        dynavit.TrainConfig(norm="dtn", epochs=0.2, model_options=options, ema=EmaConfig(decay=0.5, warmup=False)), out
    )
    return out


@pytest.fixture
def copy(run, tmp_path):
    """The same to be damaged."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


def digits():
    (batch,) = next(iter(make_loader(open_data("digits"), "test", train=False, batch_size=1000).epoch()))
    return batch.inputs, batch.targets


@torch.no_grad()
def accuracy(model):
    inputs, targets = digits()
    return float((model(inputs).argmax(-1) == targets).double().mean())


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_loaded_model_predicts_what_the_evaluation_saw(run):
    model = dynavit.load(run)
    seen = json.loads((run / "eval" / "test.json").read_text())
    assert seen["samples"] == len(digits()[1])
    assert accuracy(model) == pytest.approx(seen["top1"], abs=1e-12)
    assert not model.training
    assert dynavit.evaluate_run(run)["loss"] == seen["loss"]


def test_a_path_may_be_a_string(run):
    assert equal(state(dynavit.load(str(run))), state(dynavit.load(run)))


def test_averaged_weights_are_the_default_where_there_are_any(run):
    averaged, last = dynavit.load(run, weights="ema"), dynavit.load(run, weights="model")
    assert equal(state(dynavit.load(run)), state(averaged))
    assert not equal(state(averaged), state(last))


def test_best_and_last_are_different_checkpoints(copy):
    last, best = state(dynavit.load(copy)), copy / "checkpoints" / "best"
    shutil.rmtree(best)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in last.items()}
    write_checkpoint(best, Snapshot(zeros, None, {"step": 1}))
    assert equal(state(dynavit.load(copy, "best")), zeros)
    assert equal(state(dynavit.load(copy, "last")), last)
    shutil.rmtree(copy / "checkpoints" / "last")
    with pytest.raises(ValueError, match="copy has no checkpoint 'last'; there is best"):
        dynavit.load(copy)


def test_a_run_without_averages_says_so(copy):
    directory = copy / "checkpoints" / "last"
    manifest = json.loads((directory / "manifest.json").read_text())
    del manifest["files"]["ema.safetensors"]
    (directory / "manifest.json").write_text(json.dumps(manifest))
    assert equal(state(dynavit.load(copy)), state(dynavit.load(copy, weights="model")))
    with pytest.raises(ValueError, match="no averaged weights"):
        dynavit.load(copy, weights="ema")


def test_double_precision_is_kept(tmp_path):
    options = {"depth": 1, "embed_dim": 16, "heads": 4}
    config = dynavit.TrainConfig(norm="bn", epochs=0.05, model_options=options, engine=EngineConfig(precision="float64"))
    dynavit.train_run(config, tmp_path / "run")
    model = dynavit.load(tmp_path / "run")
    assert {tensor.dtype for tensor in model.state_dict().values() if tensor.is_floating_point()} == {torch.float64}


@pytest.mark.parametrize("file", ["model.safetensors", "ema.safetensors", "state.pt"])
def test_a_truncated_file_is_named(copy, file):
    path = copy / "checkpoints" / "last" / file
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=f"{file} has .* bytes instead of"):
        dynavit.load(copy)


@pytest.mark.parametrize("text", ["{", "[]", '{"model": {}}'])
def test_a_damaged_model_card_is_named(copy, text):
    (copy / "model.json").write_text(text)
    with pytest.raises(ValueError, match="model.json is damaged"):
        dynavit.load(copy)


def test_weights_of_another_model_are_refused(copy):
    card = json.loads((copy / "model.json").read_text())
    card["model"]["depth"] = 2
    (copy / "model.json").write_text(json.dumps(card))
    with pytest.raises(ValueError, match="ema.safetensors does not fit the model of .*model.json"):
        dynavit.load(copy)


def changed_card(run, **model):
    card = json.loads((run / "model.json").read_text())
    card["model"] |= model
    (run / "model.json").write_text(json.dumps(card))


def test_a_card_cannot_make_load_fetch_or_open_anything(copy, run):
    changed_card(copy, pretrained=True, checkpoint_path="/etc/passwd", pretrained_cfg_overlay={"url": "https://example.com"})
    assert equal(state(dynavit.load(copy)), state(dynavit.load(run)))
    changed_card(copy, name="hf-hub:timm/vit_tiny_patch16_224")
    with pytest.raises(ValueError, match="copy/model.json: the model 'hf-hub:timm/vit_tiny_patch16_224' would have to be"):
        dynavit.load(copy)


def test_a_run_with_published_weights_is_loaded_without_them(tmp_path, monkeypatch):
    import timm

    fetched = []
    monkeypatch.setattr(timm.models._builder, "load_pretrained", lambda *args, **options: fetched.append(1))
    options = {"depth": 1, "embed_dim": 16, "num_heads": 4, "patch_size": 2, "pretrained": True}
    dynavit.train_run(dynavit.TrainConfig(model="vit_tiny_patch16_224", epochs=0.05, model_options=options), tmp_path / "run")
    assert fetched == [1]
    assert "pretrained" not in json.loads((tmp_path / "run" / "model.json").read_text())["model"]


def test_data_are_not_fetched_because_the_run_once_did(copy, monkeypatch):
    from dynavit.data import open as opening
    from dynavit.runs.subject import Subject

    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("download: false", "download: true"))
    asked, open_data_ = [], opening.open_data
    monkeypatch.setattr(opening, "open_data", lambda name, at, how: asked.append(how.download) or open_data_(name, at, how))
    Subject.of(copy).open()
    assert asked == [False] and "download: true" in (copy / "config.yaml").read_text()


def test_directories_that_are_no_runs(tmp_path, run):
    with pytest.raises(ValueError, match="nowhere is not a directory"):
        dynavit.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has no model.json, so it is not a run"):
        dynavit.load(tmp_path)
    shutil.copy(run / "model.json", tmp_path)
    with pytest.raises(ValueError, match="has no checkpoint 'last'; there is none yet"):
        dynavit.load(tmp_path)


def test_a_timm_model_with_swapped_norms(tmp_path):
    options = {"depth": 1, "embed_dim": 16, "num_heads": 4, "patch_size": 2}
    config = dynavit.TrainConfig(model="vit_tiny_patch16_224", norm="dtn", epochs=0.05, model_options=options)
    dynavit.train_run(config, tmp_path / "run")
    model = dynavit.load(tmp_path / "run")
    assert isinstance(model.blocks[0].norm1, dynavit.DynamicTokenNorm)
    seen = json.loads((tmp_path / "run" / "eval" / "test.json").read_text())
    assert accuracy(model) == pytest.approx(seen["top1"], abs=1e-12)


def test_a_run_starts_from_another(run, tmp_path):
    """As fine-tuning does: other norms, a larger grid; with a learning rate of next to nothing, the weights stay."""
    options = {"depth": 1, "embed_dim": 16, "heads": 4, "patch_size": 1}
    config = dynavit.TrainConfig(norm="ln", epochs=0.05, lr=1e-12, model_options=options, init_from=str(run))
    dynavit.train_run(config, tmp_path / "run")
    source, model = dynavit.load(run), dynavit.load(tmp_path / "run")
    assert torch.allclose(model.head.weight, source.head.weight, atol=1e-6)
    assert torch.allclose(model.blocks[0].mlp.fc1.weight, source.blocks[0].mlp.fc1.weight, atol=1e-6)


def test_no_public_name_is_also_a_module():
    """Importing the module would put it in the place of the function."""
    modules = {path.stem for path in Path(dynavit.__file__).parent.iterdir()}
    assert not modules & set(dynavit.__all__)
    assert inspect.isfunction(dynavit.load)
