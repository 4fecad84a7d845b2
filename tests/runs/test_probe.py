"""Frozen features of runs: what is written, what is never read, and what else can be done with a self-distilled model."""

import json

import pytest
import torch
from safetensors import safe_open

import dynavit
from dynavit.cli.main import main
from dynavit.data.config import DataConfig
from dynavit.data.dataset import DataSet, MemorySplit
from dynavit.data.digits import open_digits
from dynavit.runs.config import TrainConfig, from_plain
from dynavit.runs.probe import probe_run, verdict
from tasks.test_dino_training import TINY

pytestmark = pytest.mark.usefixtures("probes_of_few_strengths")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("probe") / "run"
    dynavit.train_run(from_plain(TrainConfig, json.loads(json.dumps(TINY)) | {"epochs": 0.5}), out)
    return out


def weights(run):
    return {file.name: file.read_bytes() for file in (run / "checkpoints/last").glob("*.safetensors")}


def test_protocols_are_written_beside_their_features(run):
    before = weights(run)
    found = probe_run(run, ["knn", "linear_cached", "linear"], epochs=2)
    assert list(found) == ["knn", "linear_cached", "linear"]
    for name, result in found.items():
        stored = json.loads((run / f"eval/probe/{name}.json").read_text())
        assert stored["model"]["top1"] == result["model"]["top1"] and stored["train_images"] == 60
        assert all(0 <= stored[who][top] <= 1 for who in ("model", "random", "pixels") for top in ("top1", "top5"))
    assert set(found["knn"]["model"]["by_k"]) == {"10", "20"}  # 100 and 200 are more than 60 images
    assert found["linear"]["epochs"] == 2 and len(found["linear"]["model"]["heads"]) == 4 * 13
    with safe_open(run / "eval/probe/features-test.safetensors", "pt") as file:
        assert file.get_tensor("tokens").shape == (20, 2, 18) and file.get_tensor("labels").shape == (20,)
        assert file.metadata()["sha256"] == found["knn"]["sha256"]
    assert weights(run) == before


def test_neighbours_of_a_run_are_those_of_a_loop(run):
    """Features by the loaded model, images by the data set's own loader, votes one by one."""
    model, data = dynavit.load(run), open_digits(None, DataConfig(limit=60, val_limit=20, test_limit=20))
    with torch.no_grad():
        features = {}
        for split in ("train", "test"):
            images = data.splits[split].images.float() / 255
            features[split] = model((images - data.mean[0]) / data.std[0]).double()
    right, labels = 0, {split: data.splits[split].labels.tolist() for split in features}
    for x, label in zip(features["test"], labels["test"], strict=True):
        cosines = [
            (float(x @ y / (x.norm() * y.norm())), known) for y, known in zip(features["train"], labels["train"], strict=True)
        ]
        votes = [0.0] * 10
        for cosine, known in sorted(cosines, reverse=True)[:20]:
            votes[known] += torch.tensor(cosine / 0.07).exp().item()
        right += votes.index(max(votes)) == label
    assert probe_run(run, ["knn"])["knn"]["model"]["top1"] == pytest.approx(right / 20)


@pytest.mark.parametrize("protocols", [("linear_cached",), pytest.param(("linear_cached", "linear"), marks=pytest.mark.slow)])
def test_the_test_labels_choose_nothing(run, protocols):
    """With labels of the test split shuffled, the chosen heads stay; only the final numbers change."""
    data = open_digits(None, DataConfig(limit=60, val_limit=20, test_limit=20))
    split = data.splits["test"]
    poisoned = DataSet(
        data.name,
        {**data.splits, "test": MemorySplit(split.images, (split.labels + 1) % 10)},
        data.classes,
        data.image_size,
        data.mean,
        data.std,
        mirrored=False,
    )
    straight, turned = (probe_run(run, list(protocols), data=each, epochs=2) for each in (data, poisoned))
    assert turned["linear_cached"]["model"]["heads"] == straight["linear_cached"]["model"]["heads"]
    for protocol in protocols:
        assert turned[protocol]["model"]["chosen"] == straight[protocol]["model"]["chosen"]
    assert turned["linear_cached"]["model"]["top1"] != straight["linear_cached"]["model"]["top1"]


def test_the_student_is_another_choice(run):
    teacher, student = dynavit.load(run), dynavit.load(run, weights="student")
    assert any(not torch.equal(a, b) for a, b in zip(teacher.parameters(), student.parameters(), strict=True))
    found = probe_run(run, ["knn"], weights="student")
    assert found["knn"]["weights"] == "student" and (run / "eval/probe/knn-student.json").is_file()


def test_verdicts():
    results = lambda own: {who: {"top1": top1} for who, top1 in (("model", own), ("random", 0.3), ("pixels", 0.4))}  # noqa: E731
    assert verdict(results(0.5)) == "above pixels by 10.0 points and above a random network by 20.0"
    assert verdict(results(0.35)).startswith("learned nothing that shows here: 35.0% is not above pixels (40.0%)")


def test_bad_wishes_are_named(run):
    with pytest.raises(ValueError, match="unknown protocol 'nn'"):
        probe_run(run, ["nn"])
    with pytest.raises(
        ValueError, match="cls:2 need a class token in the last 2 blocks, and the model's is there in the last 1 of 2"
    ):
        probe_run(run, ["linear_cached"], features="cls:2")
    with pytest.raises(ValueError, match="k = 500 neighbours are more than the 60 training images"):
        probe_run(run, ["knn"], neighbours=[500])


def test_the_command(run, capsys):
    assert main(["eval", str(run), "--protocol", "knn", "--neighbours", "[5,20]"]) == 0
    said = capsys.readouterr().out
    assert "k-NN, k = 20: test of digits, 20 images, 60 to learn from" in said and "the same, random network" in said
    assert "pixels" in said and "eval/probe/knn.json" in said
    assert main(["eval", str(run), "--protocol", "knn", "--weights", "ema"]) == 2


@pytest.mark.slow
def test_what_else_works_on_the_backbone(run, tmp_path):
    model = dynavit.load(run)
    images = torch.randn(2, 1, 8, 8)
    assert model(images).shape == (2, 18)
    assert dynavit.swap_norms(model, "rms", start="fresh")(images).shape == (2, 18)
    assert dynavit.fold(model, example=images)(images).shape == (2, 18)
    assert main(["export", str(run), "--out", str(tmp_path / "bundle")]) == 0
    from dynavit.deploy.bundle.runner import load_bundle

    bundle = load_bundle(tmp_path / "bundle")
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(bundle(images.numpy())), model(images), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="gives features of images and knows no classes"):
        bundle.predict(images.numpy())
    assert main(["fold", str(run), "--out", str(tmp_path / "folded")]) == 0
    assert main(["analyze", str(run), "--images", "4", "--shown", "1"]) == 0
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "Codes over training" in page and "Attention maps" in page


def test_fine_tuning_names_the_head_that_starts_fresh(run, tmp_path, capsys):
    words = [
        "train",
        "--init-from",
        str(run),
        "--model",
        "vit_micro",
        "--norm",
        "dtn",
        "--epochs",
        "0.05",
        "--out",
        str(tmp_path / "fine"),
    ]
    options = [f"--model_options.{name}={value}" for name, value in TINY["model_options"].items()]
    assert main([*words, *options]) == 0
    said = "".join(capsys.readouterr())
    assert "tensors come from" in said and "head" in said


def test_other_runs_can_be_judged_too(tmp_path):
    small = {"model_options": {"depth": 1, "norm_blocks": 1}, "loading": {"limit": 40, "test_limit": 20}, "epochs": 1}
    dynavit.train_run(from_plain(TrainConfig, small), tmp_path / "run")
    found = probe_run(tmp_path / "run", ["knn"], features="cls_or_mean:1")
    assert found["knn"]["model"]["top1"] >= 0
