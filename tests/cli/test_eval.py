"""`dynavit eval`, `dynavit predict` and `dynavit report` on a finished run."""

import json
import shutil

import pytest
import torch
from PIL import Image

import dynavit
from data.image_files import write_folder, write_image
from dynavit.data.config import DataConfig
from dynavit.data.digits import open_digits
from dynavit.runs.subject import Subject


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copy")


def answers(run, split):
    """Labels of a split and what the run's model makes of it, without our loaders."""
    data = open_digits(None, DataConfig())
    images, labels = data.splits[split].images, data.splits[split].labels
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    with torch.no_grad():
        return labels, dynavit.load(run)((images / 255 - mean) / std)


@pytest.mark.parametrize(("split", "samples"), [("test", 360), ("val", 144), ("train", 1293)])
def test_splits(run, copy, split, samples):
    code, told, _ = run("eval", copy, "--split", split)
    assert code == 0
    result = json.loads((copy / "eval" / f"{split}.json").read_text())
    labels, logits = answers(copy, split)
    right = logits.argmax(-1) == labels
    assert result["samples"] == samples == len(labels)
    assert result["top1"] == pytest.approx(right.double().mean().item())
    assert result["top5"] == pytest.approx((logits.topk(5).indices == labels[:, None]).any(-1).double().mean().item())
    assert result["per_class"][3] == pytest.approx(right[labels == 3].double().mean().item())
    assert result["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)
    assert f"{split} of digits, {samples} images" in told
    assert ["top-1", f"{result['top1']:.2%}"] in [line.split() for line in told.splitlines()]
    assert told.endswith(f"written to {copy / 'eval' / f'{split}.json'}\n")


def test_json_holds_everything_but_pictures(run, copy):
    code, told, problem = run("eval", copy, "--json", "--batch-size", "100")
    assert (code, problem) == (0, "")
    printed, written = json.loads(told), json.loads((copy / "eval" / "test.json").read_text())
    assert set(written) - set(printed) == {"samples_shown"}
    assert printed["throughput"]["batch_size"] == 100
    assert printed["confusion"] == written["confusion"]


def test_the_best_checkpoint_has_a_file_of_its_own(run, copy):
    shutil.rmtree(copy / "eval")
    shutil.rmtree(copy / "checkpoints" / "last")
    code, told, _ = run("eval", copy, "--checkpoint", "best")
    assert code == 0
    assert "(best, model weights)" in told
    assert [file.name for file in (copy / "eval").iterdir()] == ["test-best.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--split", "tset"], "digits has no split 'tset'; it has train"),
        (["--weights", "ema"], "holds no averaged weights"),
        (["--batch-size", "0"], "batch_size=0"),
        (["--checkpoint", "first"], "--checkpoint"),
    ],
)
def test_mistakes(run, trained, words, message):
    code, told, problem = run("eval", trained, *words)
    assert (code, told) == (2, "")
    assert message in problem
    assert problem.count("\n") == 1


def test_a_data_set_with_other_classes_is_refused(run, trained, tmp_path):
    write_folder(tmp_path, {"val": {"cat": 1, "dog": 1}})
    code, _, problem = run("eval", trained, "--data", "folder", "--data-dir", tmp_path, "--split", "val")
    assert code == 2
    assert problem == f"dynavit: folder has 2 classes, the model of {trained} tells 10 apart\n"


def test_a_data_set_with_other_channels_is_refused(run, trained, tmp_path):
    write_folder(tmp_path, {"val": {str(digit): 1 for digit in range(10)}})
    code, _, problem = run("eval", trained, "--data", "folder", "--data-dir", tmp_path, "--split", "val")
    assert code == 2
    assert problem == f"dynavit: folder has 3 channels, the model of {trained} takes 1\n"


def test_what_is_no_run(run, tmp_path):
    for words in (["eval", tmp_path], ["predict", tmp_path, tmp_path], ["report", tmp_path]):
        code, told, problem = run(*words)
        assert (code, told) == (2, ""), words
        assert str(tmp_path) in problem and problem.count("\n") == 1


# ---- predict


@pytest.fixture
def pictures(tmp_path):
    """The first test images of the digits as files, and a broken one."""
    split = open_digits(None, DataConfig()).splits["test"]
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(3):
        Image.fromarray(split.images[number, 0].numpy()).save(folder / f"{number}.png")
    (folder / "9 broken.png").write_bytes(b"not an image")
    return folder


def test_predictions_are_those_of_the_model(run, trained, pictures):
    code, told, problem = run("predict", trained, pictures / "0.png", pictures / "2.png", "--top", "2", "--quiet")
    assert (code, problem) == (0, "")
    _, logits = answers(trained, "test")
    for line, number in zip(told.splitlines(), (0, 2), strict=True):
        confidence, label = logits[number].softmax(-1).topk(2)
        expected = ", ".join(f"{digit} {p:.1%}" for digit, p in zip(label.tolist(), confidence.tolist(), strict=True))
        assert line == f"{pictures / f'{number}.png'}: {expected}"


def test_a_directory_as_json_with_a_broken_file_in_it(run, trained, pictures, tmp_path):
    code, told, problem = run("predict", trained, pictures, "--json", "--out", tmp_path / "answers.json")
    assert (code, problem) == (2, "dynavit: 1 of 4 images could not be answered; the others are\n")
    found = json.loads(told)
    assert found == json.loads((tmp_path / "answers.json").read_text())
    assert [answer["image"] for answer in found] == [str(pictures / f"{name}.png") for name in (0, 1, 2, "9 broken")]
    assert [len(answer["top"]) for answer in found[:3]] == [3, 3, 3]
    assert found[0]["label"] == found[0]["top"][0]["label"]
    assert set(found[3]) == {"image", "error"}
    assert "9 broken.png" in found[3]["error"]


def test_images_of_any_size_and_colour_are_taken(run, trained, tmp_path):
    write_image(tmp_path / "photo.png", 0, size=(50, 70))
    code, told, _ = run("predict", trained, tmp_path / "photo.png")
    assert code == 0
    assert told.startswith(f"{tmp_path / 'photo.png'}: ")


@pytest.mark.parametrize(
    ("file", "message"),
    [("9 broken.png", "none of the images could be answered"), ("missing.png", "missing.png: there is no such file")],
)
def test_when_there_is_nothing_to_say(run, trained, pictures, file, message):
    code, _, problem = run("predict", trained, pictures / file)
    assert code == 2
    assert message in problem


def test_a_directory_without_images(run, trained, tmp_path):
    code, _, problem = run("predict", trained, tmp_path)
    assert code == 2
    assert "there is no image in this directory" in problem


def test_predict_without_files_takes_images_of_the_data_set(run, trained):
    code, told, _ = run("predict", trained, "--split", "val", "--limit", "3", "--json")
    answers = json.loads(told)
    assert code == 0 and [answer["image"] for answer in answers] == ["digits val 0", "digits val 48", "digits val 96"]
    direct = dynavit.load(trained)
    few, _ = Subject(run=trained).open().limited("val", 3)
    for answer, (batch,) in zip(answers, few.loader("val", 1).epoch(), strict=True):
        assert answer["label"] == str(int(direct(batch.inputs).argmax()))


# ---- report


def test_the_report_of_a_run(run, copy):
    code, told, _ = run("report", copy)
    assert (code, told) == (0, f"report: {copy / 'report.html'}\n")
    page = (copy / "report.html").read_text()
    assert "vit_micro" in page and "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", ""), "a page of its own needs nothing from elsewhere"
