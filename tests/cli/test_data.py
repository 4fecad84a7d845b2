"""Data sets of image files on the command line: folders, lists, and what may be wrong with them."""

import json

import pytest

from data.image_files import write_folder, write_image

# No workers: starting them takes longer than the training.
SMALL = (
    *("--model", "test_vit", "--loading.image_size", "32", "--loading.workers", "0"),
    *("--epochs", "1", "--batch-size", "4", "--augment.recipe", "light"),
)


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "images", {"train": {"cat": 4, "dog": 4}, "val": {"cat": 2, "dog": 2}})


def metrics(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_a_folder_of_images(run, folder, tmp_path):
    out = tmp_path / "x"
    code, told, _ = run("train", *SMALL, "--data", "folder", "--data-dir", folder, "--out", out)
    assert code == 0
    assert "val: top-1" in told and "of 4 images" in told
    assert json.loads((out / "model.json").read_text())["classes"] == ["cat", "dog"]
    code, told, _ = run("predict", out, folder / "val", "--json")
    assert code == 0
    assert {answer["label"] for answer in json.loads(told)} <= {"cat", "dog"}


def test_a_broken_image_is_left_out_named_and_counted(run, folder, tmp_path):
    broken = folder / "train" / "dog" / "1.png"
    broken.write_bytes(b"not an image")
    out = tmp_path / "x"
    code, _, progress = run("train", *SMALL, "--data", "folder", "--data-dir", folder, "--out", out)
    assert code == 0
    assert len([line for line in progress.splitlines() if str(broken) in line]) == 1
    lines = metrics(out)
    assert [str(broken) in line["text"] for line in lines if line["kind"] == "note"] == [True]
    assert sum(line.get("broken", 0) for line in lines if line["kind"] == "train") == 1


@pytest.mark.parametrize("option", ["--strict", "--loading.strict"])
def test_strict_stops_at_a_broken_image(run, folder, tmp_path, option):
    broken = folder / "train" / "dog" / "1.png"
    broken.write_bytes(b"not an image")
    words = ["--quiet", "--data", "folder", "--data-dir", folder, "--out", tmp_path / "x"]
    code, _, problem = run("train", *SMALL, option, *words)
    assert code == 2
    assert str(broken) in problem and problem.count("\n") == 1


def test_evaluation_skips_a_broken_image_or_stops(run, folder, tmp_path):
    out = tmp_path / "x"
    assert run("train", *SMALL, "--data", "folder", "--data-dir", folder, "--out", out)[0] == 0
    broken = folder / "val" / "cat" / "0.png"
    broken.write_bytes(b"not an image")
    code, told, progress = run("eval", out, "--split", "val")
    assert code == 0
    assert "val of folder, 3 images" in told
    assert str(broken) in progress
    code, _, problem = run("eval", out, "--split", "val", "--strict")
    assert code == 2
    assert str(broken) in problem


def test_lists_with_spaces_in_paths(run, tmp_path):
    root = tmp_path / "my photographs"
    lines = []
    for number in range(8):
        name = f"summer {number % 2}/no {number}.png"
        write_image(root / name, number)
        lines.append(f"{name} {number % 2}")
    (tmp_path / "train.txt").write_text("\n".join(lines[:6]))
    (tmp_path / "val.txt").write_text("\n".join(lines[6:]))
    lists = ["--loading.train_list", tmp_path / "train.txt", "--loading.val_list", tmp_path / "val.txt"]
    roots = ["--loading.train_root", root, "--loading.val_root", root]
    code, told, _ = run("train", *SMALL, "--data", "list", *lists, *roots, "--out", tmp_path / "x")
    assert code == 0
    assert "of 2 images" in told
    assert json.loads((tmp_path / "x" / "model.json").read_text())["data"] == {"name": "list", "train": 6, "val": 2}


def empty_class(folder):
    (folder / "train" / "bird").mkdir()
    return "no images in class bird"


def other_classes(folder):
    write_image(folder / "val" / "bird" / "0.png", 0)
    return "bird"


def no_classes(folder):
    for image in sorted((folder / "train").rglob("*.png")):
        image.rename(folder / "train" / f"{image.parent.name}{image.name}")
    for name in ("cat", "dog"):
        (folder / "train" / name).rmdir()
    return "holds no folders; expected one for each class"


def no_train(folder):
    (folder / "train").rename(folder / "training")
    return "folder has no training images"


def nothing(folder):
    for name in ("train", "val"):
        (folder / name).rename(folder / f"{name}ing")
    return "holds neither train/ nor val/"


@pytest.mark.parametrize("damage", [empty_class, other_classes, no_classes, no_train, nothing])
@pytest.mark.parametrize("command", ["train", "compare"])
def test_bad_folders_are_refused_before_training(run, folder, tmp_path, command, damage):
    message = damage(folder)
    code, told, problem = run(command, *SMALL, "--data", "folder", "--data-dir", folder, "--out", tmp_path / "x")
    assert (code, told) == (2, "")
    assert message in problem
    assert problem.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.png cat", "train.txt:1: expected `path label`"),
        ("a.png 0\nb.png 2", "no image has label 1"),
        ("a.png 0\nz.png 1", "train.txt:2: there is no image"),
        ("", "names no images"),
    ],
)
def test_bad_lists_are_refused_before_training(run, tmp_path, text, message):
    for name in ("a.png", "b.png"):
        write_image(tmp_path / name, 0)
    (tmp_path / "train.txt").write_text(text)
    words = ["--data", "list", "--loading.train_list", tmp_path / "train.txt"]
    code, told, problem = run("train", *SMALL, *words, "--out", tmp_path / "x")
    assert (code, told) == (2, "")
    assert message in problem
    assert problem.count("\n") == 1
    assert not (tmp_path / "x").exists()
