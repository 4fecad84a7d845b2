"""`dynavit fold`, `dynavit export` and `dynavit predict` on what they write."""

import json
import shutil

import pytest
import torch
from PIL import Image

import dynavit
from cli.tiny import TINY
from dynavit.cli.main import main
from dynavit.data.config import DataConfig
from dynavit.data.digits import open_digits


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run with batch norms, and beside it what is made of it."""
    root = tmp_path_factory.mktemp("runs")
    assert main(["train", *TINY, "--norm", "bn", "--quiet", "--out", str(root / "x")]) == 0
    assert main(["fold", str(root / "x"), "--recalibrate", "3"]) == 0
    assert main(["export", str(root / "x-folded"), "--int8", "--out", str(root / "bundle")]) == 0
    split = open_digits(None, DataConfig()).splits["test"]
    (root / "pictures").mkdir()
    for number in range(4):
        Image.fromarray(split.images[number, 0].numpy()).save(root / "pictures" / f"{number}.png")
    (root / "pictures" / "9.png").write_bytes(b"no image")
    return root


def test_a_folded_run_is_a_run(run, runs):
    folded = dynavit.load(runs / "x-folded")
    assert not any("BatchNorm" in type(module).__name__ for module in folded.modules())
    code, told, _ = run("eval", runs / "x-folded", "--split", "val", "--json")
    assert code == 0
    assert json.loads(told)["samples"] == 144
    card = json.loads((runs / "x-folded" / "model.json").read_text())
    source = card["fold"]["source"]
    assert len(source.pop("sha256")) == 64
    assert source == {"run": "x", "checkpoint": "last", "weights": "model", "step": 4}
    assert card["fold"]["report"]["folded"] == 2


def test_folding_changes_no_answer(run, runs, tmp_path):
    code, told, _ = run("fold", runs / "x", "--out", tmp_path / "y")
    assert code == 0
    assert "2 folded" in told and f"written to {tmp_path / 'y'}" in told
    images = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before, after, other = (dynavit.load(path)(images) for path in (runs / "x", tmp_path / "y", runs / "x-folded"))
    assert torch.allclose(before, after, atol=1e-5)
    assert not torch.allclose(before, other, atol=1e-3)  # that one was recalibrated


def test_the_manifest_says_what_is_needed(runs):
    manifest = json.loads((runs / "bundle" / "manifest.json").read_text())
    assert manifest["classes"] == [str(digit) for digit in range(10)]
    assert manifest["preprocess"]["channels"] == 1 and manifest["preprocess"]["image_size"] == [8, 8]
    assert manifest["norm"] == "bn" and manifest["source"]["run"] == "x-folded"
    assert manifest["fold"]["folded"] == 2 and manifest["fold"]["error"] < 1e-5
    assert set(manifest["versions"]) == {"dynavit", "torch", "onnx", "onnxruntime"}
    assert max(manifest["error"]["at_batch"].values()) <= manifest["error"]["allowed"]
    assert set(manifest["files"]) == {"model.onnx", "model.int8.onnx"}
    small = manifest["int8"]
    assert small["held_out_images"] == 360
    assert abs(small["accuracy"]["int8"] - small["accuracy"]["float32"]) < 0.1 and small["same_answer"] > 0.8
    assert set(small["milliseconds_at_batch_1"]) == {"float32", "int8"}


def test_a_bundle_answers_like_its_run(run, runs, tmp_path):
    answers, lines = [], []
    for source in ("x-folded", "bundle"):
        code, told, _ = run("predict", runs / source, runs / "pictures", "--top", "2", "--out", tmp_path / source)
        assert code == 2, "one file is no image"
        lines.append(told)
        answers.append(json.loads((tmp_path / source).read_text()))
    for mine, theirs in zip(*answers, strict=True):
        assert mine.keys() == theirs.keys() and mine["image"] == theirs["image"]
        assert mine.get("error") == theirs.get("error") and mine.get("label") == theirs.get("label")
        for a, b in zip(mine.get("top", []), theirs.get("top", []), strict=True):
            assert a["label"] == b["label"] and a["confidence"] == pytest.approx(b["confidence"], abs=1e-5)
    assert lines[0] == lines[1]


def test_the_8_bit_model_is_another(run, runs):
    told = [json.loads(run("predict", runs / "bundle", runs / "pictures", "--json", *more)[1]) for more in ((), ("--int8",))]
    assert told[0][0]["confidence"] != told[1][0]["confidence"]
    assert told[0][0]["confidence"] == pytest.approx(told[1][0]["confidence"], abs=0.1)


def test_a_bundle_can_be_loaded_as_a_model(runs):
    model, source = dynavit.load(runs / "bundle"), dynavit.load(runs / "x-folded")
    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(model(images), source(images), atol=1e-5)
    assert not model.training and model.bundle.classes[3] == "3"
    with pytest.raises(ValueError, match="is a bundle, which holds one set of weights"):
        dynavit.load(runs / "bundle", "best")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["export", "x", "--out", "bundle"],
            "bundle exists and is not empty; choose another folder, or overwrite it (--overwrite, overwrite=True)",
        ),
        (["export", "x", "--out", "pictures", "--overwrite"], "pictures holds something else, so it is not overwritten"),
        (
            ["export", "x", "--format", "pt2", "--int8"],
            "8-bit weights are written for ONNX classifiers, not for the format pt2",
        ),
        (["export", "pictures"], "pictures has no model.json, so it is not a run"),
        (["export", "x", "--weights", "ema"], "holds no averaged weights"),
        (["fold", "x"], "x-folded exists and is not empty"),
        (["fold", "x", "--out", "x", "--overwrite"], "x holds something else, so it is not overwritten"),
        (["fold", "absent"], "absent is not a directory"),
        (["predict", "x", "pictures", "--int8"], "is not a bundle, and only those hold 8-bit weights"),
        (["predict", "bundle", "pictures", "--device", "cuda"], "is a bundle: one set of weights, for the CPU"),
        (["predict", "bundle", "pictures/9.png"], "none of the images could be answered"),
        (["predict", "bundle", "absent.png"], "absent.png: there is no such file"),
        (["predict", "bundle"], "is a bundle, which has no data set to take images of; name files"),
    ],
)
def test_mistakes(run, runs, monkeypatch, words, message):
    monkeypatch.chdir(runs)
    before = sorted(path for path in runs.rglob("*"))
    code, _, problem = run(*words)
    assert code == 2
    assert message in problem and problem.count("\n") == 1
    assert sorted(path for path in runs.rglob("*")) == before


def test_a_tampered_bundle(run, runs, tmp_path):
    copy = shutil.copytree(runs / "bundle", tmp_path / "copy")
    content = (copy / "model.onnx").read_bytes()
    (copy / "model.onnx").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    code, told, problem = run("predict", copy, runs / "pictures")
    assert (code, told) == (2, "")
    assert problem == f"dynavit: {copy / 'model.onnx'} was altered: its SHA-256 is not the manifest's\n"
