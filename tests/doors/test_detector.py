"""A detector of one's own: trained, judged, drawn and shown on a page, by the doors alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dynavit.common.data import LoaderOptions
from dynavit.common.plugins import load_plugin
from dynavit.data.config import AugmentConfig
from dynavit.runs.assemble import training_task
from dynavit.runs.config import TrainConfig
from dynavit.runs.predict import predict_run

pytestmark = pytest.mark.usefixtures("no_guest_stays", "nothing_is_drawn_in_this_file")

PLUGIN = ("--plugin", Path(__file__).parent / "fake_detector.py")
FEW = [
    f"--loading.options.{name}={value}"
    for name, value in {"train": 4, "val": 2, "test": 5, "size": 48, "vary": 0.5, "short": 40}.items()
]
TRAIN = ("train", *PLUGIN, "--task", "fake_detection", "--model", "dot", "--data", "shapes", *FEW, "--loading.workers", "0")


def test_train_eval_predict_draw_report(run, tmp_path):
    out = tmp_path / "run"
    code, told, _ = run(*TRAIN, "--batch_size", "2", "--epochs", "1", "--engine.device", "cpu", "--out", out, "--quiet")
    assert code == 0 and "test: box AP 100.0%" in told
    code, told, _ = run("eval", out, *PLUGIN, "--save-predictions")
    assert code == 0 and "average precision of each class" in told and "images/s of the model at batch 8" in told
    result = json.loads((out / "eval" / "test.json").read_text())
    assert result["box_ap"] == result["mask_ap"] == pytest.approx(1) and result["errors"]["missed"] == 0

    predictions = json.loads((out / "eval" / "predictions" / "test.json").read_text())
    assert {"image_id", "category_id", "bbox", "score", "segmentation"} == set(predictions[0])
    assert str(out / "eval" / "predictions" / "test.json") in told

    Image.fromarray(np.full((200, 300, 3), 90, np.uint8)).save(tmp_path / "photo.png")
    code, told, _ = run("predict", out, tmp_path / "photo.png", *PLUGIN, "--draw", tmp_path / "drawn.png")
    assert code == 0 and "photo.png: disc 90% at 90,60–210,140\n" in told and f"drawn: {tmp_path / 'drawn.png'}" in told
    drawn = np.asarray(Image.open(tmp_path / "drawn.png"))
    assert (drawn != 90).any() and not (drawn[:60] != 90).any()  # the less sure one is not drawn
    code, told, _ = run("predict", out, tmp_path / "photo.png", *PLUGIN, "--score", "0.2", "--json")
    assert [entry["label"] for entry in json.loads(told)[0]["found"]] == ["disc", "square"]

    answers = predict_run(out, limit=2, draw=tmp_path / "several")  # samples of the data set
    assert len(answers) == 2 and len(list((tmp_path / "several").glob("*.png"))) == 2
    for answer in answers:  # inputs are resized, answers are not
        height, width = answer["size"]
        assert answer["found"][0]["box"] == pytest.approx([0.3 * width, 0.3 * height, 0.7 * width, 0.7 * height], abs=0.1)
    twice = [tmp_path / "photo.png", tmp_path / "photo.png"]
    predict_run(out, twice, draw=tmp_path / "same")
    assert {file.name for file in (tmp_path / "same").iterdir()} == {"photo.png", "photo-2.png"}

    assert run("report", out, *PLUGIN)[0] == 0
    page = (out / "report.html").read_text()
    assert "Detections" in page and page.count('<img src="data:image/jpeg') > 3
    # Everything here is ours, so that the run can be overwritten.
    assert run(*TRAIN, "--epochs", "1", "--engine.device", "cpu", "--out", out, "--quiet", "--overwrite")[0] == 0
    assert not (out / "eval" / "predictions").exists()


def test_what_cannot_be_drawn_is_said_after_the_answer(run, tmp_path):
    out = tmp_path / "run"
    assert run(*TRAIN, "--epochs", "1", "--engine.device", "cpu", "--out", out, "--quiet")[0] == 0
    for name in ("a", "b"):
        Image.new("RGB", (40, 30)).save(tmp_path / f"{name}.png")
    code, told, problem = run("predict", out, tmp_path / "a.png", tmp_path / "b.png", *PLUGIN, "--draw", tmp_path / "c.png")
    assert code == 2 and "is one picture, and there are 2 images; name a directory" in problem and "b.png: disc" in told
    code, _, problem = run("predict", out, tmp_path / "a.png", *PLUGIN, "--draw", tmp_path / "c.bmp")
    assert code == 2 and "pictures end in .png, .jpg, .jpeg, .webp" in problem


def test_a_classifier_draws_nothing(run, tmp_path):
    small = ("--model_options.depth", "1", "--model_options.norm_blocks", "1", "--epochs", "0.05", "--quiet")
    assert run("train", "--data", "digits", *small, "--engine.device", "cpu", "--out", tmp_path / "run")[0] == 0
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    code, told, problem = run("predict", tmp_path / "run", tmp_path / "a.png", "--draw", tmp_path / "b.png")
    assert code == 2 and "the task 'classification' does not draw its answers" in problem and "a.png: " in told
    code, _, problem = run("eval", tmp_path / "run", "--save-predictions")
    assert code == 2 and "has no form for its predictions" in problem


@pytest.mark.slow
def test_two_processes_find_what_one_finds(run, tmp_path):
    """Some images are empty, and in the last batch one process has none and borrows one."""
    odd = ("--loading.options.fewest=0", "--loading.options.most=1", "--loading.options.eval_batch=2", "--task.jitter=3")
    train = [str(word) for word in (*TRAIN, *odd, "--epochs", "1", "--engine.device", "cpu", "--quiet")]
    assert run(*train, "--out", tmp_path / "one")[0] == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "dynavit"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, *train, "--out", str(tmp_path / "two")], env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = (json.loads((tmp_path / name / "eval" / "test.json").read_text()) for name in ("one", "two"))
    for name in ("box_ap", "box_ap50", "mask_ap", "samples", "coco", "errors"):
        assert one[name] == two[name], name
    assert one["samples"] == 5 and 0 < one["box_ap"] < 1


def test_the_fake_knows_what_it_does_not_find():
    """Jitter and losses show in the numbers, so that a page of it is worth looking at."""
    load_plugin(PLUGIN[1])
    options = {"train": 2, "val": 0, "test": 12, "size": 64}
    config = TrainConfig(data="shapes", model="dot", task="fake_detection", task_options={"lost": 0.4, "jitter": 3.0})
    config.loading.options, config.loading.workers = options, 0
    task, _ = training_task(config)
    how = LoaderOptions(train=False, batch_size=4, augment=AugmentConfig(), config=config.loading)
    evaluator = task.evaluator()
    for batches in task.loader(task.data, "test", how).epoch():
        evaluator.update(batches[0])
    results = dict(evaluator.results())
    assert 0.05 < results["box_ap"] < results["mask_ap"] < 0.95
