"""Detection as a task on made-up shapes: evaluation, answers about files, resuming, two processes."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import dynavit
from dynavit.common.data import LoaderOptions
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.tasks.detection.originals import in_original
from dynavit.tasks.options import DetectionOptions
from dynavit.tasks.table import TASKS
from tasks.detection.targets import batch_of, target

pytest.importorskip("dynavit.data.detection.shapes")

SCENE = {"train": 12, "val": 5, "test": 0, "size": 64, "vary": 0.4, "largest": 40}
TINY = {
    "data": "shapes",
    "model": "test_retinanet",
    "norm": "dtn",
    "epochs": 2,
    "batch_size": 4,
    "loading": {"options": SCENE},
    "task_options": {"anchor_scale": 2.0},
    "engine": {"device": "cpu", "log_every": 1, "checkpoint_every": 2, "threads": 1},
}
MASKS = {**TINY, "model": "test_maskrcnn", "task_options": {"anchor_scale": 4.0, "rois": 16, "proposals": 20, "candidates": 50}}


def shapes(**options):
    from dynavit.data.open import open_data

    return open_data("shapes", None, DataConfig(options={**SCENE, **options}))


def detection(name="test_retinanet", data=None, **options):
    torch.manual_seed(0)
    data = data or shapes()
    task, given = TASKS["detection"], DetectionOptions(**options)
    call = {key: value for key, value in task.model_options(data, given).items() if value is not None}
    return task.build(dynavit.create_model(name, "dtn", **call), data, given).eval()


def how(train=False, batch_size=4, **options):
    return LoaderOptions(train=train, batch_size=batch_size, augment=AugmentConfig(), config=DataConfig(), **options)


class Oracle(torch.nn.Module):
    """Answers with the truth, in resized pixels, as far as it was told."""

    def __init__(self, detector, targets, masks):
        super().__init__()
        self.backbone, self.padding = detector.backbone, detector.padding
        self.targets, self.masks, self.calls = list(targets), masks, []

    def detect(self, images, sizes, rules):
        self.calls.append(len(images))
        found = [self.targets.pop(0) for _ in images]
        return [
            {
                "boxes": one["boxes"],
                "scores": torch.linspace(1, 0.5, len(one["boxes"])),
                "labels": one["labels"],
                "chances": cut(one) if self.masks else None,
            }
            for one in found
        ]


def cut(one):
    """The true masks as a mask head would draw them."""
    from dynavit.tasks.detection.maskrcnn import mask_targets

    return mask_targets(one["masks"], one["boxes"], torch.arange(len(one["boxes"])))


def evaluated(task, data, monkeypatch, masks, change=lambda target: target):
    loader = task.loader(data, "val", how(batch_size=100))
    batches = [batch for (batch,) in loader.epoch()]
    told = [change(dict(one)) for batch in batches for one in batch.targets]
    oracle = Oracle(task.detector, told, masks)
    monkeypatch.setattr(type(task), "detector", property(lambda _: oracle))
    evaluator = task.evaluator()
    for batch in batches:
        evaluator.update(batch)
    return evaluator, oracle


@pytest.mark.parametrize("name", ["test_retinanet", "test_maskrcnn"])
def test_the_truth_in_resized_pixels_has_an_ap_of_1(name, monkeypatch):
    data = shapes(short=90, size=64)  # resized, so that a scale that is forgotten shows
    task = detection(name, data)
    evaluator, oracle = evaluated(task, data, monkeypatch, name == "test_maskrcnn")
    found = dict(evaluator.results())
    assert found["box_ap"] == pytest.approx(1.0) and found["box_ap75"] == pytest.approx(1.0)
    assert ("mask_ap" in found) == (name == "test_maskrcnn")
    if "mask_ap" in found:
        assert found["mask_ap50"] == pytest.approx(1.0) and found["mask_ap"] > 0.7  # 28 cells cannot draw all borders
    assert oracle.calls == [1] * 5 and evaluator.samples == 5  # images are evaluated one by one
    assert list(found) == [metric.name for metric in task.metrics]
    rows = task.tables(json.loads(json.dumps(evaluator.details())))[1][2]
    assert [row[0] for row in rows] == data.classes and rows[0][2] == "100.0"


def test_wrong_classes_and_nothing_have_none(monkeypatch):
    data = shapes()
    task = detection(data=data)
    wrong = lambda one: {**one, "labels": (one["labels"] + 1) % 4}  # noqa: E731
    evaluator, _ = evaluated(task, data, monkeypatch, False, wrong)
    assert dict(evaluator.results())["box_ap"] < 0.2
    nothing = lambda one: {**one, "boxes": one["boxes"][:0], "labels": one["labels"][:0]}  # noqa: E731
    evaluator, _ = evaluated(detection(data=data), data, monkeypatch, False, nothing)
    assert dict(evaluator.results())["box_ap"] == 0


def test_a_borrowed_image_is_not_counted():
    data = shapes()
    task = detection(data=data, score=0.0)
    (batch,) = next(iter(task.loader(data, "val", how(rank=1, world=2, batch_size=1)).epoch()))
    assert batch.count == 0
    evaluator = task.evaluator()
    evaluator.update(batch)
    assert evaluator.samples == 0
    with pytest.raises(ValueError, match="nothing was evaluated"):
        dict(evaluator.results())


def test_back_to_the_original_image():
    found = {
        "boxes": torch.tensor([[10.0, 20.0, 30.0, 40.0]]),
        "scores": torch.tensor([0.5]),
        "labels": torch.tensor([2]),
        "chances": torch.ones(1, 28, 28),
    }
    own = in_original(found, (2.0, 4.0), (30, 10))  # twice as high, four times as wide
    assert own["boxes"].tolist() == [[2.5, 10.0, 7.5, 20.0]]
    from dynavit.data.detection.rle import decode

    mask = decode(own["masks"][0])
    assert mask.shape == (30, 10) and mask[10:20, 3:7].all() and not mask[:9].any() and not mask[:, 8:].any()


def test_what_does_not_fit_says_so():
    with pytest.raises(ValueError, match="trains detectors, retinanet or maskrcnn, and VisionTransformer is none"):
        TASKS["detection"].build(dynavit.create_model("test_vit"), shapes(), DetectionOptions())
    with pytest.raises(ValueError, match="has none; --model_options.with_masks false"):
        detection("test_maskrcnn", shapes(masks=False))
    digits = dynavit.data.open.open_data("digits", None, DataConfig())
    with pytest.raises(ValueError, match="about images with boxes, and digits has none"):
        TASKS["detection"].check_data(digits)


def test_answers_about_files(tmp_path):
    from PIL import Image

    data = shapes(short=90, size=64)
    task = detection("test_maskrcnn", data, score=0.0, detections=3)
    facts = json.loads(json.dumps(data.describe()))
    Image.new("RGB", (50, 40), (200, 30, 30)).save(tmp_path / "photo.png")
    inputs = task.read_input(tmp_path / "photo.png", facts)
    assert inputs["sizes"].tolist() == [[90, 113]] and inputs["images"].shape == (1, 3, 96, 128)
    answer = json.loads(json.dumps(task.answer(inputs, facts, 5)))
    assert answer["size"] == [40, 50] and len(answer["found"]) == 3
    for one in answer["found"]:
        assert one["label"] in data.classes and 0 <= one["box"][0] <= one["box"][2] <= 50 and one["mask"]["size"] == [40, 50]
    assert task.answer_text(answer).count("%") == 3
    assert task.surer_than(answer, 1.0)["found"] == []
    drawn = task.draw(Image.open(tmp_path / "photo.png"), answer, facts)
    assert drawn.mode == "RGB" and drawn.size[0] >= 50
    (batch,) = next(iter(task.loader(data, "val", how(batch_size=1)).epoch()))
    assert task.answer(task.input_of(batch), facts, 5)["size"] == list(batch.targets[0]["original_size"])
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="broken.png"):
        task.read_input(tmp_path / "broken.png", facts)
    with pytest.raises(ValueError, match="short, long"):
        task.read_input(tmp_path / "photo.png", {"mean": [0], "std": [1]})


# ---- training


def weights(run):
    return load_file(run / "checkpoints" / "last" / "model.safetensors")


def trained(out, options, **more):
    from dynavit import TrainConfig, train_run
    from dynavit.runs.config import from_plain

    return train_run(from_plain(TrainConfig, options), out, **more)


@pytest.mark.parametrize(
    "options", [pytest.param(TINY, id="retinanet"), pytest.param(MASKS, id="maskrcnn", marks=pytest.mark.slow)]
)
def test_a_run_that_was_stopped_goes_on_to_the_bit(options, tmp_path, monkeypatch):
    trained(tmp_path / "whole", options)
    from dynavit.engine.trainer import Trainer

    update, stop = Trainer.update, {"at": 4}  # in the second epoch, and not where it begins

    def stopping(self, *given):
        update(self, *given)
        if self.step == stop["at"]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "update", stopping)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "stopped", options)
    stop["at"] = -1
    trained(tmp_path / "stopped", options, resume=True)
    whole, stopped = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)
    results = [json.loads((tmp_path / run / "eval/val.json").read_text()) for run in ("whole", "stopped")]
    assert results[0]["box_ap"] == results[1]["box_ap"] and results[0]["coco"] == results[1]["coco"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [TINY, MASKS], ids=["retinanet", "maskrcnn"])
def test_two_processes_evaluate_as_one_and_an_empty_image_stops_nobody(options, tmp_path):
    """Losses are divided by what each process sees, as in MMDetection, so weights differ; evaluation of the same may not."""
    options = {**options, "loading": {"options": {**SCENE, "fewest": 0, "most": 1}}, "epochs": 1}  # many empty images
    (tmp_path / "two.yaml").write_text(json.dumps(options))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "dynavit"]
    train = [*launch, "train", "--config", tmp_path / "two.yaml", "--out", tmp_path / "two", "--quiet"]
    done = subprocess.run(
        list(map(str, train)), env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    two = json.loads((tmp_path / "two/eval/val.json").read_text())
    from dynavit.runs.evaluate import evaluate_run

    one = evaluate_run(tmp_path / "two", split="val")
    assert two["samples"] == one["samples"] == 5 and two["box_ap"] == pytest.approx(one["box_ap"], abs=1e-9, nan_ok=True)
    assert two["errors"] == one["errors"]


def test_targets_without_a_loader_train_too():
    task = detection(data=shapes()).train()
    losses = task(batch_of([target([[5.0, 5.0, 40.0, 30.0]], [1])]))
    assert set(losses) == {"loss", "loss_class", "loss_box", "far"}


# ---- overfitting


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["ln", "dtn"])
@pytest.mark.parametrize(("model", "steps"), [("retinanet", 300), ("maskrcnn", 200)])
def test_eight_pictures_are_learned_by_heart(model, norm, steps, tmp_path):
    small = {"backbone": "pvt_nano", "width": 64}
    own = {"tower": 2} if model == "retinanet" else {"hidden": 256, "mask_depth": 2}
    few = {"rois": 128, "proposals": 200, "candidates": 200}
    task = {"anchor_scale": 2.0} if model == "retinanet" else {"anchor_scale": 4.0, **few}
    options = {
        "data": "shapes",
        "model": model,
        "norm": norm,
        "model_options": {**small, **own},
        "task_options": task,
        "epochs": steps / 2,
        "batch_size": 4,
        "lr": 5e-4,
        "augment": {"flip": False},
        "loading": {"options": {"train": 8, "val": 0, "test": 1, "smallest": 32}},
        "engine": {"device": "cpu", "log_every": 10},
    }
    trained(tmp_path / "run", options)
    from dynavit.runs.evaluate import evaluate_run

    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < 0.2 * losses[0]
    found = evaluate_run(tmp_path / "run", split="train")
    assert found["box_ap50"] >= 0.7
    assert model == "retinanet" or found["mask_ap50"] >= 0.6
