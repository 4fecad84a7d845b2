"""Answers about image files have one form, whoever gives them."""

import json

import numpy as np
import pytest
from PIL import Image

from dynavit.common.answers import best_classes
from dynavit.data.folder import EXTENSIONS as TRAINING_EXTENSIONS
from dynavit.deploy.bundle.answers import EXTENSIONS, answer_files, image_files
from dynavit.deploy.bundle.exit_rule import ExitRule
from dynavit.deploy.bundle.runner import Bundle

CLASSES = ["ant", "bee", "cat"]


@pytest.fixture
def pictures(tmp_path):
    """Three files: grey values 0 and 255, and one that is no image."""
    for name, grey in (("a.png", 0), ("b.png", 255)):
        Image.new("L", (2, 2), grey).save(tmp_path / name)
    (tmp_path / "c.png").write_bytes(b"no image")
    return tmp_path


def test_the_most_probable_classes_come_first():
    assert best_classes(np.array([0.25, 0.5, 0.25]), None, CLASSES, 2) == {
        "label": "bee",
        "confidence": 0.5,
        "top": [{"label": "bee", "confidence": 0.5}, {"label": "ant", "confidence": 0.25}],
    }
    several = best_classes(np.array([0.25, 0.5, 0.25], np.float32), 2, CLASSES, 9)
    assert [each["label"] for each in several["top"]] == ["bee", "ant", "cat"] and several["exit"] == 2
    assert json.loads(json.dumps(several)) == several
    broken = best_classes(np.array([0.25, np.nan, 0.25]), None, CLASSES, 2)
    assert set(broken) == {"error"} and "not finite" in broken["error"]


def test_files_that_cannot_be_read_are_answers_too_and_a_wrong_model_is_an_error(pictures):
    def prepare(path):
        if path.name == "c.png":
            raise ValueError("no image")
        return path.name

    answers = answer_files([pictures], CLASSES, 1, prepare=prepare, predict=lambda name: (np.array([0.1, 0.9, 0.0]), None))
    assert [answer.get("label") for answer in answers] == ["bee", "bee", None]
    assert answers[2] == {"image": str(pictures / "c.png"), "error": "no image"}

    def refuse(name):
        raise ValueError("other shape")

    with pytest.raises(ValueError, match="other shape"):
        answer_files([pictures], CLASSES, 1, prepare=prepare, predict=refuse)
    with pytest.raises(ValueError, match="at least 1; got 0"):
        answer_files([pictures], CLASSES, 0, prepare=prepare, predict=refuse)


@pytest.mark.parametrize("rule", [None, ExitRule((0.6, -np.inf), "max_softmax")])
def test_a_bundle_answers_and_counts_exits_from_1(pictures, rule):
    """The first exit is sure of white images only, the second names the third class."""

    def first(images):
        return [np.log(np.where(images.mean((1, 2, 3), keepdims=True)[..., 0, 0] > 0, [0.2, 0.7, 0.1], [0.4, 0.4, 0.2]))]

    def second(images):
        return [np.log(np.tile([[0.1, 0.1, 0.8]], (len(images), 1)))]

    preprocess = {"kind": "memory", "stored_size": [2, 2], "image_size": [2, 2], "mean": [0.5], "std": [0.5]}
    facts = {"classes": CLASSES, "input": [1, 2, 2], "preprocess": preprocess}
    dark, light, broken = Bundle(None, facts, [first, second], rule).predict_files([pictures], top=2)
    assert (dark["label"], dark["confidence"]) == ("cat", pytest.approx(0.8)) and len(dark["top"]) == 2
    assert light["label"] == ("bee" if rule else "cat")
    assert (dark.get("exit"), light.get("exit")) == ((2, 1) if rule else (None, None))
    assert broken["error"].startswith("cannot read image")


def test_directories_stand_for_their_images(tmp_path):
    assert EXTENSIONS == TRAINING_EXTENSIONS
    with pytest.raises(ValueError, match="there is no image in this directory"):
        image_files([tmp_path])
    for name in ("b.PNG", "a.jpg", "notes.txt"):
        (tmp_path / name).touch()
    assert image_files([str(tmp_path)]) == [tmp_path / "a.jpg", tmp_path / "b.PNG"]
    assert image_files([tmp_path / "notes.txt"]) == [tmp_path / "notes.txt"]  # asked for by name
    with pytest.raises(ValueError, match="there is no such file"):
        image_files([tmp_path / "absent.png"])
    with pytest.raises(ValueError, match="no images were given"):
        image_files([])
