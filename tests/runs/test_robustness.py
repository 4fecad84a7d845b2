"""Errors on corrupted images: what is measured, what is kept, and what is made of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dynavit
from data.image_files import write_folder, write_image
from dynavit import evaluate_robust
from dynavit.analysis.measures.corruption_error import ALEXNET
from dynavit.data.config import DataConfig
from dynavit.data.corruptions import corrupt
from dynavit.data.corruptions.severities import TABLES, Table
from dynavit.data.digits import open_digits
from dynavit.data.imagenet import imagenet_classes
from dynavit.data.imagenet_variants import variant_ids
from dynavit.engine.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from dynavit.engine.evaluate import evaluate
from dynavit.engine.progress import Progress
from dynavit.runs.model_files import ModelCard
from dynavit.runs.robustness import read_robust
from runs.made_up_runs import random_run, write_weights

FEW = {"corruptions": ["gaussian_noise", "fog"], "severities": [1, 4], "limit": 90}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    # Most random weights take every image for the same digit; with these, corruption changes the answers.
    return random_run(tmp_path_factory.mktemp("runs") / "digits", seed=24)


@pytest.fixture
def run(digits, tmp_path):
    return shutil.copytree(digits, tmp_path / "run")


@pytest.fixture
def passes(monkeypatch):
    """(corruption, severity) of each pass over the images."""
    seen = []

    def watched(task, loader, *rest):
        seen.append((loader.name, loader.severity))
        return evaluate(task, loader, *rest)

    monkeypatch.setattr("dynavit.runs.corrupted.evaluate", watched)
    return seen


def direct_error(run, name, severity, seed=0, limit=90):
    """Without loaders: the model of the run on corrupted bytes."""
    split = open_digits(None, DataConfig()).splits["test"]
    chosen = torch.arange(limit) * len(split) // limit
    images = split.images[chosen]
    if severity:
        images = corrupt(images, name, severity, seed=seed, index=chosen)
    with torch.no_grad():
        predicted = dynavit.load(run)((images / 255 - 0.5) / 0.5).argmax(-1)
    return (predicted != split.labels[chosen]).double().mean().item()


def flat(errors):
    return {f"{name} {place}": value for name, values in errors.items() for place, value in enumerate(values)}


# ---- What is measured


def test_errors_are_those_of_the_corrupted_images(run):
    result = evaluate_robust(run, **FEW, seed=3)["corruptions"]
    expected = {name: [direct_error(run, name, severity, seed=3) for severity in (1, 4)] for name in ("gaussian_noise", "fog")}
    assert flat(result["errors"]) == pytest.approx(flat(expected))
    assert len({result["clean_error"], *flat(expected).values()}) > 2, "or this tests nothing"
    assert result["clean_error"] == pytest.approx(direct_error(run, "", 0))
    mean = sum(sum(values) / 2 for values in expected.values()) / 2
    assert result["mean_error"] == pytest.approx(mean)
    assert result["gap"] == pytest.approx(mean - result["clean_error"])
    assert (result["mce"], result["ce"], result["baseline"]) == (None, None, None)
    assert result["notes"] == ["no mCE: it compares with a baseline, which --baseline RUN names"]
    assert read_robust(run) == json.loads((run / "eval/robust/corruptions.json").read_text()) == result
    assert read_robust(run, "imagenet_c") is None


def test_all_corruptions_in_the_usual_order(run):
    result = evaluate_robust(run, severities=[5], limit=10)["corruptions"]
    assert list(result["errors"]) == list(ALEXNET)


def test_the_batch_size_changes_nothing(run):
    many = evaluate_robust(run, **FEW)
    shutil.rmtree(run / "eval")
    assert evaluate_robust(run, **FEW, batch_size=7) == many


# ---- What is kept


def test_what_was_measured_is_not_measured_again(run, passes):
    first = evaluate_robust(run, **FEW)
    assert passes == [("clean", 0), ("gaussian_noise", 1), ("gaussian_noise", 4), ("fog", 1), ("fog", 4)]
    passes.clear()
    assert evaluate_robust(run, **FEW) == first
    assert passes == []
    evaluate_robust(run, **{**FEW, "corruptions": ["fog", "snow"], "severities": [4, 2]})
    assert passes == [("snow", 2), ("snow", 4), ("fog", 2)]


def test_an_interruption_loses_nothing_that_was_finished(run, passes, monkeypatch):
    whole = evaluate_robust(run, **FEW)
    shutil.rmtree(run / "eval")
    passes.clear()

    class Stop(Progress):
        def step(self, done):
            if done == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_robust(run, **FEW, progress=Stop())
    assert len(passes) == 3
    assert read_robust(run) is None
    passes.clear()
    assert evaluate_robust(run, **FEW) == whole
    assert passes == [("fog", 1), ("fog", 4)]


@pytest.mark.parametrize("change", [{"limit": 50}, {"split": "val"}, pytest.param({"limit": None}, marks=pytest.mark.slow)])
def test_other_images_are_measured_anew(run, passes, change):
    evaluate_robust(run, **FEW)
    passes.clear()
    evaluate_robust(run, **{**FEW, **change})
    assert len(passes) == 5
    passes.clear()
    evaluate_robust(run, **FEW)
    assert passes == [], "the earlier ones are kept too"


def test_another_seed_leaves_clean_images_as_they_are(run, passes):
    evaluate_robust(run, **FEW)
    passes.clear()
    evaluate_robust(run, **FEW, seed=1)
    assert len(passes) == 4 and ("clean", 0) not in passes


def test_other_weights_of_the_same_step_are_measured_anew(run, passes):
    before = evaluate_robust(run, **FEW)["corruptions"]
    passes.clear()
    shutil.rmtree(run / "checkpoints/last")
    write_weights(run, ModelCard.read(run).model, seed=1)
    after = evaluate_robust(run, **FEW)["corruptions"]
    assert len(passes) == 5
    assert after["errors"] != before["errors"]


def test_averaged_weights_and_the_best_checkpoint_are_others(run, passes):
    """The checkpoint decides which weights are the usual ones: this configuration says nothing of an average."""
    last, ones = run / "checkpoints/last", read_checkpoint(run / "checkpoints/last").model
    shutil.rmtree(last)
    write_weights(run, ModelCard.read(run).model, seed=1)
    others = read_checkpoint(last).model
    shutil.move(last, run / "checkpoints/best")
    write_checkpoint(last, Snapshot(others, ones, {"step": 1}))
    usual = evaluate_robust(run, **FEW)["corruptions"]
    assert usual["conditions"]["model"]["weights"] == "ema"
    assert usual["errors"]["fog"][1] == pytest.approx(direct_error(run, "fog", 4))
    passes.clear()
    assert evaluate_robust(run, **FEW, weights="ema")["corruptions"] == usual
    assert passes == []
    trained = evaluate_robust(run, **FEW, weights="model")["corruptions"]
    assert len(passes) == 5 and trained["errors"] != usual["errors"]
    passes.clear()
    best = evaluate_robust(run, **FEW, checkpoint="best")["corruptions"]
    assert len(passes) == 5 and best["errors"] == trained["errors"]


@pytest.fixture
def animals(tmp_path):
    """Folders of images and a run that was made with them."""
    folder = write_folder(tmp_path / "animals", {"val": {"cat": 3, "dog": 2}, "test": {"cat": 2, "dog": 3}})
    run = random_run(tmp_path / "pets", data="folder", data_dir=folder, classes=["cat", "dog"], side=32, channels=3)
    return folder, run


FOG = {"corruptions": ["fog"], "severities": [1, 4]}


def test_other_files_with_the_same_labels_are_measured_anew(animals, passes, tmp_path):
    folder, run = animals
    evaluate_robust(run, **FOG)
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    passes.clear()
    evaluate_robust(run, **FOG, data_dir=elsewhere)
    assert passes == [], "the same files in another place"
    write_image(elsewhere / "test/dog/1.png", 99)
    evaluate_robust(run, **FOG, data_dir=elsewhere)
    assert len(passes) == 3


def test_broken_images_are_told_and_measured_once_repaired(animals):
    folder, run = animals
    file = folder / "test/dog/1.png"
    content = file.read_bytes()
    file.write_bytes(b"no image")
    note = "images that cannot be read do not count, up to 1 in each pass"
    for _ in range(2):  # measured, and read
        broken = evaluate_robust(run, **FOG)["corruptions"]
        assert (broken["broken"], note in broken["notes"]) == (1, True)
    file.write_bytes(content)
    whole = evaluate_robust(run, **FOG)["corruptions"]
    assert (whole["broken"], note in whole["notes"]) == (0, False)


def test_exact_corruptions_are_others(animals, passes):
    _, run = animals
    evaluate_robust(run, **FOG)
    passes.clear()
    evaluate_robust(run, **FOG, exact=True)
    assert passes == [("fog", 1), ("fog", 4)]


def test_errors_of_before_images_were_stored_as_jpeg_are_not_used(animals, passes, tmp_path, monkeypatch):
    folder, _ = animals
    run = random_run(tmp_path / "large", classes=["cat", "dog"], side=72, data="folder", data_dir=folder, channels=3)
    with monkeypatch.context() as before:
        before.setitem(TABLES, "large", Table(TABLES["large"].strengths))
        images = evaluate_robust(run, **FOG)["corruptions"]["conditions"]["images"]
    assert [*images][-3:] == ["table", "seed", "exact"], "as they were keyed then"
    passes.clear()
    images = evaluate_robust(run, **FOG)["corruptions"]["conditions"]["images"]
    assert passes == [("fog", 1), ("fog", 4)]
    assert (images["table"], images["jpeg"]) == ("large", 85)


def test_what_exact_corruptions_cannot_do_is_found_before_the_work(run, passes, animals, monkeypatch):
    with pytest.raises(ValueError, match=r"exact corruptions take colour images of 32 px and more, these are \(1, 8, 8\)"):
        evaluate_robust(run, **FEW, exact=True)
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    with pytest.raises(ValueError, match="an exact corruption needs imagecorruptions, which is not installed"):
        evaluate_robust(animals[1], **FOG, exact=True)
    assert passes == []


def test_two_evaluations_at_once_lose_nothing(run, passes):
    class Meanwhile(Progress):
        def step(self, done):
            if done == 2:  # after fog at severity 1
                evaluate_robust(run, corruptions=["fog"], severities=[2, 4], limit=90)

    result = evaluate_robust(run, **{**FEW, "corruptions": ["fog"]}, progress=Meanwhile())["corruptions"]
    assert result["severities"] == [1, 4] and result == read_robust(run)
    passes.clear()
    kept = evaluate_robust(run, corruptions=["fog"], severities=[1, 2, 4], limit=90)["corruptions"]
    assert passes == []
    assert kept["errors"]["fog"] == pytest.approx([direct_error(run, "fog", severity) for severity in (1, 2, 4)])


def test_a_limit_beyond_the_split_is_the_whole_split(run, passes):
    evaluate_robust(run, **{**FEW, "limit": None})
    passes.clear()
    evaluate_robust(run, **{**FEW, "limit": 10**6})
    assert passes == []


# ---- Baselines


def test_a_run_is_as_robust_as_itself(run):
    result = evaluate_robust(run, **FEW, baseline=run)["corruptions"]
    assert result["mce"] == 100
    assert set(result["ce"].values()) == {100}
    assert result["notes"][-1] == "mCE is over 2 of 15 corruptions"


def test_a_baseline_is_measured_where_that_is_missing(run, passes, tmp_path):
    other = random_run(tmp_path / "other", seed=5)
    evaluate_robust(other, **{**FEW, "corruptions": ["fog"]})
    passes.clear()
    result = evaluate_robust(run, **FEW, baseline=other)["corruptions"]
    assert len(passes) == 5 + 2
    its = {name: [direct_error(other, name, severity) for severity in (1, 4)] for name in FEW["corruptions"]}
    ce = {name: 100 * sum(result["errors"][name]) / sum(values) for name, values in its.items()}
    assert result["ce"] == pytest.approx(ce)
    assert result["mce"] == pytest.approx(sum(ce.values()) / 2)
    assert result["baseline"]["name"] == "other" and flat(result["baseline"]["errors"]) == pytest.approx(flat(its))
    assert read_robust(other)["errors"].keys() == {"fog"}, "its own summary stays as it was"
    evaluate_robust(run, **{**FEW, "limit": 40}, baseline=other)
    assert read_robust(other)["conditions"]["images"]["samples"] == 90, "also if it was of other images"


def test_a_baseline_gets_a_summary_if_it_has_none(run, tmp_path):
    other = random_run(tmp_path / "other", seed=5)
    result = evaluate_robust(run, **FEW, baseline=str(other))["corruptions"]
    assert read_robust(other)["errors"] == result["baseline"]["errors"]
    assert read_robust(other)["mce"] is None


def test_a_wrong_baseline_is_found_before_the_work(run, passes, tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a directory"):
        evaluate_robust(run, **FEW, baseline=tmp_path / "nowhere")
    assert passes == []


def test_alexnet_beside_other_classes_is_noted(run):
    result = evaluate_robust(run, corruptions=["fog"], limit=30, baseline="alexnet")["corruptions"]
    assert result["mce"] == pytest.approx(100 * sum(result["errors"]["fog"]) / 5 / 0.819)
    assert "not of these 10" in result["notes"][0]


def test_a_baseline_that_cannot_be_compared(animals, passes, tmp_path):
    folder, run = animals
    made = {"data": "folder", "data_dir": folder, "channels": 3}
    large = random_run(tmp_path / "large", classes=["cat", "dog"], side=96, **made)
    with pytest.raises(ValueError, match="large takes images of 96 × 96 px, which are corrupted by the table for large images"):
        evaluate_robust(run, **FOG, baseline=large)
    turned = random_run(tmp_path / "turned", classes=["dog", "cat"], side=32, **made)
    with pytest.raises(ValueError, match="folder has the classes of .*turned in another order"):
        evaluate_robust(run, **FOG, baseline=turned)
    cars = random_run(tmp_path / "cars", classes=["car", "lorry"], side=32, **made)
    with pytest.raises(ValueError, match="cars tells other classes apart, car, lorry instead of cat, dog"):
        evaluate_robust(run, **FOG, baseline=cars)
    assert passes == []


def test_what_to_know_about_a_baseline(animals, tmp_path):
    folder, run = animals
    other = random_run(tmp_path / "o", data="folder", data_dir=folder, classes=["cat", "dog"], side=48, channels=3)
    result = evaluate_robust(run, **FOG, baseline=other, weights="model")["corruptions"]
    assert result["notes"][:2] == [
        "the baseline takes images of 48 × 48 px instead of 32 × 32 px",
        "the baseline is asked with its usual weights; --weights is for the run alone",
    ]


def test_an_average_that_the_baseline_lacks_is_not_asked_of_it(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    last = run / "checkpoints/last"
    weights = read_checkpoint(last).model
    shutil.rmtree(last)
    write_checkpoint(last, Snapshot(weights, weights, {"step": 1}))
    assert evaluate_robust(run, **FEW, baseline=other, weights="ema")["corruptions"]["mce"] == 100, "the same weights"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corruptions": ["fgo"]}, "unknown corruption 'fgo'. Did you mean 'fog'"),
        ({"corruptions": []}, "name at least one corruption"),
        ({"severities": [0, 1]}, "severities are numbers from 1 to 5, got [0, 1]"),
        ({"severities": []}, "severities are numbers from 1 to 5"),
        ({"limit": 0}, "limit=0"),
        ({"processes": 0}, "processes is at least 1"),
        ({"split": "tset"}, "digits has no split 'tset'; it has train"),
        ({"exact": True, "imagenet_c": Path("c")}, "leave one of them out"),
        ({"imagenet_r": Path("r"), "baseline": "alexnet"}, "a baseline is for corruptions"),
        ({"imagenet_c": Path("nowhere")}, "ImageNet-C: there is no folder nowhere"),
        ({"imagenet_a": Path("nowhere")}, "the model tells 10 classes apart"),
    ],
)
def test_wrong_options(run, options, message):
    with pytest.raises(ValueError) as caught:
        evaluate_robust(run, **options)
    assert message in str(caught.value)


# ---- ImageNet


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """Its validation images (the same for every class) and a model of its classes that prefers the first one."""
    root = tmp_path_factory.mktemp("imagenet")
    ids, names = imagenet_classes()
    image = write_image(root / "one.png", 0, (32, 32))
    for id in ids:
        link(image, root / "val" / id)
    run = random_run(root / "run", data="imagenet", data_dir=root, classes=names, side=32, channels=3, favourite=0)
    return root, run


def link(image: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    os.link(image, folder / "0.JPEG")


def test_alexnet_is_the_baseline_of_imagenet(imagenet):
    _, run = imagenet
    result = evaluate_robust(run, corruptions=["fog"], limit=4)["corruptions"]
    assert result["errors"] == {"fog": [0.75] * 5}, "one of four images has the favourite class"
    assert result["ce"] == pytest.approx({"fog": 100 * 0.75 / 0.819})
    assert result["relative_mce"] == pytest.approx(0, abs=1e-9)
    assert result["baseline"]["name"] == "AlexNet"
    assert "here the corruptions are computed anew" in result["notes"][0]


def test_alexnet_needs_all_severities(imagenet):
    _, run = imagenet
    options = {"corruptions": ["fog"], "severities": [1, 2], "limit": 4}
    assert evaluate_robust(run, **options)["corruptions"]["notes"][0].startswith("no mCE: AlexNet's published errors are means")
    with pytest.raises(ValueError, match="means over all five severities; leave --severities out"):
        evaluate_robust(run, **options, baseline="alexnet")


@pytest.mark.parametrize("variant", ["imagenet_r", "imagenet_a"])
def test_only_the_200_classes_can_be_chosen(imagenet, tmp_path, monkeypatch, variant):
    root, run = imagenet
    for id in variant_ids(variant):
        link(root / "one.png", tmp_path / variant / id)
    result = evaluate_robust(run, **{variant: tmp_path / variant})
    assert list(result) == [variant], "nothing else was asked for"
    found = result[variant]
    # The favourite is not among them, or nothing would be right. One picture has one answer, right for one class of 200.
    assert (found["samples"], found["classes"], found["top1"], found["top5"]) == (200, 200, 1 / 200, 5 / 200)
    assert read_robust(run, variant) == found
    monkeypatch.setattr("dynavit.runs.robustness.evaluate", None)  # not called again
    assert evaluate_robust(run, **{variant: tmp_path / variant}) == result


def test_shuffled_classes_are_matched_by_their_ids(imagenet, tmp_path):
    """All folders hold the same picture, three times in the favourite's, which is what every picture is taken for."""
    root, _ = imagenet
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).tolist()
    known = imagenet_classes()[0]
    ids = [known[i] for i in order]
    favourite = variant_ids("imagenet_r")[7]
    run = random_run(tmp_path / "run", classes=ids, data="folder", side=32, channels=3, favourite=ids.index(favourite))
    for id in variant_ids("imagenet_r"):
        link(root / "one.png", tmp_path / "r" / id)
    for more in ("1.JPEG", "2.JPEG"):
        os.link(root / "one.png", tmp_path / "r" / favourite / more)
    found = evaluate_robust(run, imagenet_r=tmp_path / "r")["imagenet_r"]
    assert (found["samples"], found["top1"], found["notes"]) == (202, 3 / 202, [])
    (tmp_path / "r" / favourite / "2.JPEG").unlink()
    os.link(root / "one.png", tmp_path / "r" / favourite / "3.JPEG")
    again = evaluate_robust(run, imagenet_r=tmp_path / "r")["imagenet_r"]
    assert again["conditions"] != found["conditions"], "as many images with the same labels, but another file"


def test_a_guess_about_classes_is_stored(imagenet, tmp_path):
    root, _ = imagenet
    names = [f"class {i}" for i in range(1000)]
    run = random_run(tmp_path / "run", classes=names, data="folder", side=32, channels=3, favourite=0)
    for id in imagenet_classes()[0]:
        link(root / "one.png", tmp_path / "c/fog/1" / id)
    result = evaluate_robust(run, corruptions=["fog"], severities=[1], imagenet_c=tmp_path / "c", limit=4)["imagenet_c"]
    assert result["errors"] == {"fog": [0.75]}
    assert "the 1000 classes have other names than ImageNet's and are taken in its order" in result["notes"]
    assert read_robust(run, "imagenet_c") == result


def test_clean_images_beside_imagenet_c_are_known_by_their_split(tmp_path):
    ids = imagenet_classes()[0][3:5]
    folder = write_folder(tmp_path / "own", {"val": dict(zip(ids, (3, 1), strict=True)), "test": dict.fromkeys(ids, 1)})
    made = {"data": "folder", "data_dir": folder, "side": 32, "channels": 3, "favourite": 0}
    run = random_run(tmp_path / "run", classes=ids, **made)
    for number, id in enumerate(ids):
        write_image(tmp_path / "c/fog/1" / id / "0.png", number, (32, 32))
    options = {"corruptions": ["fog"], "severities": [1], "imagenet_c": tmp_path / "c"}
    found = [evaluate_robust(run, **options, split=split)["imagenet_c"] for split in ("val", "test")]
    assert [result["clean_error"] for result in found] == [0.25, 0.5]
    assert found[0]["conditions"]["images"] == found[1]["conditions"]["images"]


def test_files_of_imagenet_c(tmp_path):
    ids = imagenet_classes()[0][3:5]
    run = random_run(tmp_path / "run", data="folder", classes=ids, side=32, channels=3)
    for severity in (1, 2):
        for number, id in enumerate([*ids, "n01440764"]):  # the last is a class that the model does not know
            write_image(tmp_path / "c/weather/fog" / str(severity) / id / "0.png", 10 * severity + number, (32, 32))
    options = {"corruptions": ["fog"], "severities": [1, 2], "imagenet_c": tmp_path / "c"}
    result = evaluate_robust(run, **options)["imagenet_c"]
    from dynavit.data.read_image import read_image
    from dynavit.data.transforms import transforms

    expected = []
    for severity in (1, 2):
        files = [tmp_path / "c/weather/fog" / str(severity) / id / "0.png" for id in ids]
        pixels = torch.stack([transforms.ToTensor()(read_image(file)) for file in files])
        with torch.no_grad():
            right = dynavit.load(run)((pixels - 0.5) / 0.5).argmax(-1) == torch.tensor([0, 1])
        expected.append(1 - right.double().mean().item())
    assert result["errors"] == {"fog": expected}
    assert (result["clean_error"], result["gap"]) == (None, None)
    assert "the error on clean images is not known: data folder needs data_dir" in result["notes"][-1]
    with pytest.raises(ValueError, match="lacks snow; it has fog"):
        evaluate_robust(run, **{**options, "corruptions": ["fog", "snow"]})
    with pytest.raises(ValueError, match="fog has no severity 3; it has 1, 2"):
        evaluate_robust(run, **{**options, "severities": [1, 3]})


# ---- Several processes


@pytest.mark.slow
def test_several_processes_give_the_same(run, passes):
    alone = evaluate_robust(run, **FEW)
    shutil.rmtree(run / "eval")
    passes.clear()
    told = []

    class Told(Progress):
        def step(self, done):
            told.append(done)

    assert evaluate_robust(run, **FEW, processes=2, progress=Told()) == alone
    assert passes == [], "this process only waited"
    assert told == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_torchrun_gives_the_same(run, tmp_path):
    """Two processes share the images; 90 of them in batches of 32 leave 26, 13 for each."""
    alone = evaluate_robust(run, **FEW, baseline=run)
    shutil.rmtree(run / "eval")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "dynavit", "robust"]
    options = ["--corruptions", "gaussian_noise,fog", "--severities", "1,4", "--limit", "90", "--batch-size", "32"]
    words = [*torchrun, str(run), *options, "--baseline", str(run), "--device", "cpu"]
    done = subprocess.run(
        words, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert read_robust(run) == alone["corruptions"]
    assert len(list((run / "eval/robust").iterdir())) == 3, "one key for clean images, one for corrupted ones, one summary"
    assert done.stdout.count("written to") == 1, "one process is enough to tell"
