"""Bundles, pretrained models and files of weights are evaluated like runs."""

import json

import pytest
import torch
from safetensors.torch import save_file

import dynavit
from cli.tiny import TINY
from data.image_files import write_folder
from dynavit.cli.main import main
from dynavit.data.config import DataConfig
from dynavit.data.imagenet import imagenet_classes
from dynavit.data.imagenet_labels import imagenet_numbers, with_imagenet_labels
from dynavit.data.open import open_data
from dynavit.runs.evaluate import evaluate_run
from dynavit.runs.foreign import BundleSubject, WeightsSubject, asked_of
from runs.notes import Notes

NAME = "deit_tiny_patch16_224"
IDS = ("n01440764", "n02102040", "n03888257")  # tench, English springer, parachute: 0, 217, 701


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    assert main(["train", *TINY, "--quiet", "--out", str(root / "x")]) == 0
    assert main(["export", str(root / "x")]) == 0
    return root / "x", root / "x-onnx"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("photos"), {"val": {IDS[2]: 2, IDS[0]: 1, IDS[1]: 1}})


def small(monkeypatch, **options):
    """`create_model` of timm gives this model small, so that a file of weights takes no room."""
    import timm

    whole = timm.create_model
    cut = {"embed_dim": 12, "depth": 1, "num_heads": 2, "patch_size": 56, **options}
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained=False, **given: whole(name, **{**cut, **given}))


def stored(tmp_path, **options):
    torch.manual_seed(0)
    model = dynavit.create_model(NAME, **options).eval()
    save_file(model.state_dict(), tmp_path / "deit.safetensors")
    return tmp_path / "deit.safetensors", model


def test_a_bundle_is_evaluated_as_its_run(bundle, capsys):
    run, made = bundle
    expected = evaluate_run(run, data="digits", device="cpu")
    before = sorted(path.name for path in made.iterdir())
    result = evaluate_run(made, data="digits")
    assert (result["top1"], result["confusion"]) == (expected["top1"], expected["confusion"])
    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert (result["weights"], result["step"]) == (expected["weights"], expected["step"])
    assert "file" not in result and sorted(path.name for path in made.iterdir()) == before
    capsys.readouterr()
    assert main(["eval", str(made), "--data", "digits", "--split", "val"]) == 0
    told = capsys.readouterr().out
    assert "top-1" in told and "written to" not in told
    assert not (made / "eval").exists()


@pytest.mark.slow
def test_a_cascades_bundle(tmp_path):
    words = ["--model", "dvt_vit_digits", "--model_options.depth", "1", "--epochs", "0.2", "--quiet"]
    assert main(["train", *words, "--out", str(tmp_path / "dvt")]) == 0
    assert main(["export", str(tmp_path / "dvt")]) == 0
    run, made = (evaluate_run(path, data="digits") for path in (tmp_path / "dvt", tmp_path / "dvt-onnx"))
    assert (made["exit1_top1"], made["exit2_top1"]) == (run["exit1_top1"], run["exit2_top1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "which has no data set; say --data"),
        ({"data": "digits", "checkpoint": "best"}, "leave --checkpoint and --weights out"),
        ({"data": "digits", "device": "cuda"}, "runs on the CPU"),
        ({"data": "digits", "model": NAME}, "--model is for files of weights"),
    ],
)
def test_what_a_bundle_cannot_be_asked(bundle, options, message):
    with pytest.raises(ValueError, match=message):
        evaluate_run(bundle[1], **options)


def test_pretrained_weights_are_judged_on_some_of_imagenets_classes(folder, tmp_path, monkeypatch):
    """The oracle: images through timm's own transform and model, compared with the numbers of their classes."""
    import timm
    from PIL import Image

    small(monkeypatch)
    file, model = stored(tmp_path)
    notes = Notes()
    result = evaluate_run(file, data="folder", data_dir=folder, model=NAME, progress=notes)
    transform = timm.data.create_transform(**timm.data.resolve_data_config(model=model))
    right = []
    for id, number in zip(IDS, (0, 217, 701), strict=True):
        for path in sorted((folder / "val" / id).iterdir()):
            with torch.no_grad():
                logits = model(transform(Image.open(path).convert("RGB"))[None])
            right.append((number, torch.nn.functional.cross_entropy(logits, torch.tensor([number])).item()))
    assert result["loss"] == pytest.approx(sum(loss for _, loss in right) / len(right), rel=1e-4)
    assert result["samples"] == 4 and len(result["classes"]) == 1000
    assert [at for at, share in enumerate(result["per_class"]) if share is not None] == [0, 217, 701]
    assert any("ImageNet's by WordNet id: n01440764 is tench" in note for note in notes.notes)

    monkeypatch.setattr("dynavit.runs.initial._pretrained", lambda name: model)
    named = evaluate_run(f"timm:{NAME}", data="folder", data_dir=folder)
    assert named["loss"] == result["loss"]


def test_on_the_command_line(folder, tmp_path, monkeypatch, capsys):
    small(monkeypatch)
    file, _ = stored(tmp_path)
    words = ["--data", "folder", "--data-dir", str(folder)]
    assert main(["eval", str(file), "--model", NAME, *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 4
    assert main(["eval", str(file), *words]) == 2
    assert "say --model, as in --model deit_tiny_patch16_224" in capsys.readouterr().err


def test_weights_that_do_not_fit_are_refused(folder, tmp_path, monkeypatch):
    small(monkeypatch)
    file, _ = stored(tmp_path, depth=2)
    with pytest.raises(ValueError, match=r"deit.safetensors does not fit the model .*blocks\.1"):
        evaluate_run(file, data="folder", data_dir=folder, model=NAME)
    broken = {name: tensor * float("nan") for name, tensor in dynavit.create_model(NAME).state_dict().items()}
    save_file(broken, tmp_path / "nan.safetensors")
    with pytest.raises(ValueError, match="NaN"):
        evaluate_run(tmp_path / "nan.safetensors", data="folder", data_dir=folder, model=NAME)


def test_weights_for_as_many_classes_of_ones_own(tmp_path, monkeypatch):
    small(monkeypatch)
    file, _ = stored(tmp_path, num_classes=2)
    photos = write_folder(tmp_path / "photos", {"val": {"cat": 1, "dog": 1}})
    notes = Notes()
    result = evaluate_run(file, data="folder", data_dir=photos, model=NAME, progress=notes)
    assert result["samples"] == 2 and any("classes have other names" in note for note in notes.notes)
    more = write_folder(tmp_path / "more", {"val": {"cat": 1, "dog": 1, "eel": 1}})
    with pytest.raises(ValueError, match="has 3 classes, the model of .* tells 2 apart"):
        evaluate_run(file, data="folder", data_dir=more, model=NAME)


@pytest.mark.parametrize(
    ("classes", "numbers", "how"),
    [
        (["n02102040", "n01440764"], [217, 0], "WordNet id"),
        (["0", "217", "999"], [0, 217, 999], "number"),
        (["000", "0217"], [0, 217], "number"),
        (["tench, Tinca tinca", "parachute, chute"], [0, 701], "name"),
    ],
)
def test_classes_are_known_by(classes, numbers, how):
    assert imagenet_numbers("folder", classes, "x") == (numbers, how)


def test_all_thousand_names_and_ids_are_known():
    for known in imagenet_classes():
        assert imagenet_numbers("imagenet", known, "x")[0] == list(range(1000))


@pytest.mark.parametrize("classes", [["cat", "n01440764"], ["1000"], ["-1"], ["cats", "dogs"], ["²"]])
def test_other_classes_are_refused(classes):
    with pytest.raises(
        ValueError, match=r"timm:x tells ImageNet's 1000 classes apart, and these of folder are not .* --init-from"
    ):
        imagenet_numbers("folder", classes, "timm:x")


def test_labels_are_renumbered_in_every_split(folder):
    data = open_data("folder", folder, DataConfig(workers=0))
    labelled = with_imagenet_labels(data, "x")
    assert labelled.splits["val"].labels.tolist() == [0, 217, 701, 701]
    assert labelled.splits["val"].paths == data.splits["val"].paths


def test_which_kind_is_asked(bundle, tmp_path):
    file, _ = tmp_path / "x.safetensors", (tmp_path / "x.safetensors").write_bytes(b"")
    assert type(asked_of(bundle[1])) is BundleSubject
    assert type(asked_of("timm:x")) is type(asked_of(file)) is WeightsSubject
    with pytest.raises(ValueError, match="keeps no results"):
        _ = asked_of("timm:x").directory
