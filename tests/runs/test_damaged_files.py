"""Whatever a file of a run or a bundle holds, the answer is an error that names it: no other exception, no hang, no guess.

Every field of every JSON file is damaged in turn: of a wrong type, missing, huge, not a number, nested garbage.
"""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import dynavit
from dynavit.analysis.report.read import named, read_directory
from dynavit.analysis.report.shapes import Evaluation, check_classified
from dynavit.common.files import read_json
from dynavit.deploy.bundle.manifest import MANIFEST, write_manifest
from dynavit.deploy.bundle.runner import OnnxPart, load_bundle
from dynavit.engine.checkpoint import STATE, Checkpoints, _sha256
from dynavit.engine.config import EngineConfig, TrainPlan
from dynavit.engine.processes import Processes
from dynavit.engine.trainer import Trainer
from dynavit.models.cascade.policy import ExitPolicy, FoundOn
from dynavit.runs.calibrate import read_calibration, read_policy
from dynavit.runs.directory import RunDirectory
from dynavit.runs.model_files import ModelCard
from dynavit.runs.predict import predict_run
from dynavit.tasks.classification import Classification

OPTIONS = {"depth": 1, "embed_dim": 16, "heads": 4}
GARBAGE = ["x", -1, 1e300, 10**400, None, [], {}, [[[{}]]], {"a": {"b": []}}, True]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A trained run with a policy and a calibration, in a comparison, and a bundle whose model is a stand-in."""
    root = tmp_path_factory.mktemp("files")
    run = root / "comparison" / "ln-seed0"
    config = dynavit.TrainConfig(epochs=0.1, model_options=OPTIONS, engine=EngineConfig(log_every=1))
    dynavit.train_run(config, run)
    policy = ExitPolicy((0.5, -1.0), gmacs=(1, 2), milliseconds=(1, 2), batch_size=8, found_on=FoundOn("digits", "val", 0, 9))
    (run / "policy.json").write_text(policy.to_json())
    judged = {"data": "digits", "split": "test", "classes": ["a", "b"], "policy": json.loads(policy.to_json()), "samples": 9}
    judged |= {"accuracy": 0.5, "shares": [0.5, 0.5], "gmacs": 1.5, "milliseconds": 1.5, "anytime": [0.4, 0.6]}
    judged |= {"curve": [{"thresholds": [0.5, None], "gmacs": 1.5, "accuracy": 0.5}], "measured": [], "gallery": [[], []]}
    (run / "analysis").mkdir()
    (run / "analysis" / "calibration.json").write_text(json.dumps(judged))
    settings = [{"name": "ln", "values": {"norm": "ln"}, "runs": ["ln-seed0"]}]
    compared = {"varied": ["norm"], "settings": settings, "seeds": [0], "baseline": {"norm": "ln"}, "failures": {}, "cost": []}
    (root / "comparison" / "comparison.json").write_text(json.dumps(compared))
    card = ModelCard.read(run)
    (root / "bundle").mkdir()
    (root / "bundle" / "model.onnx").write_bytes(b"model")
    facts = {"backend": "onnx", "parts": ["model.onnx"], "classes": card.classes, "input": list(card.input_size)}
    write_manifest(root / "bundle", facts | {"preprocess": card.preprocess})
    from PIL import Image

    Image.new("L", (8, 8)).save(root / "digit.png")
    return root


def load_run(root):
    dynavit.load(root / "comparison" / "ln-seed0")
    predict_run(root / "comparison" / "ln-seed0", [root / "digit.png"])


def ask_bundle(root):
    load_bundle(root / "bundle").predict_files([root / "digit.png"])


def read_evaluation(root):
    found = read_json(root / RUN / "eval" / "test.json", Evaluation)
    with named(root / RUN / "eval" / "test.json"):
        check_classified(found)


RUN = "comparison/ln-seed0"
READERS = {
    f"{RUN}/model.json": load_run,
    f"{RUN}/checkpoints/last/manifest.json": load_run,
    f"{RUN}/finished.json": lambda root: RunDirectory(root / RUN).finished(),
    f"{RUN}/policy.json": lambda root: read_policy(root / RUN),
    f"{RUN}/analysis/calibration.json": lambda root: read_calibration(root / RUN),
    f"{RUN}/eval/test.json": read_evaluation,
    "comparison/comparison.json": lambda root: read_directory(root / "comparison"),
    f"bundle/{MANIFEST}": ask_bundle,
}


def fields(value, path=()):
    """Paths to every field; of lists only to the first item."""
    for key in value if isinstance(value, dict) else range(min(len(value), 1)):
        yield (*path, key)
        if isinstance(value[key], dict | list) and len(path) < 2:
            yield from fields(value[key], (*path, key))


def damaged(value, path, change):
    value = copy.deepcopy(value)
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    if change is None:
        del inside[path[-1]]
    else:
        inside[path[-1]] = change[0]
    return value


def problem(reader, *arguments):
    """The message of an error that a user may see; None: some damage is none, a number in place of another. Any other exception
    fails the test."""
    try:
        reader(*arguments)
    except (ValueError, OSError) as error:
        return str(error)
    return None


def stand_in(monkeypatch):
    monkeypatch.setattr(OnnxPart, "__call__", lambda part, images: [np.zeros((len(images), 10), np.float32)])


@pytest.mark.parametrize("every", [5, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_field_is_an_error_that_names_the_file(root, tmp_path, monkeypatch, name, every):
    """Each kind of garbage for every second field, or every fifth."""
    stand_in(monkeypatch)
    reader = READERS[name]
    here = Path(shutil.copytree(root, tmp_path / "copy"))
    reader(here)  # whole, it is read
    whole = json.loads((root / name).read_text())
    refused = 0
    for number, path in enumerate(fields(whole)):
        for change in (None, *((garbage,) for garbage in GARBAGE[number % every :: every])):
            (here / name).write_text(json.dumps(damaged(whole, path, change)))
            found = problem(reader, here)
            assert found is None or Path(name).name in found or "the manifest" in found, f"{path} = {change}: {found}"
            refused += found is not None
    assert refused > len(GARBAGE)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '{"a": NaN}', "[" * 50_000, "\x00\x01"], ids=range(8))
def test_a_file_that_is_no_json_is_named(root, tmp_path, monkeypatch, name, text):
    stand_in(monkeypatch)
    here = Path(shutil.copytree(root, tmp_path / "copy"))
    (here / name).write_text(text)
    with pytest.raises((ValueError, OSError), match=Path(name).name):
        READERS[name](here)


def test_a_damaged_state_is_named(root, tmp_path):
    """The one that a run goes on from."""
    here = Path(shutil.copytree(root / RUN / "checkpoints", tmp_path / "checkpoints"))
    shutil.rmtree(here / "previous", ignore_errors=True)
    whole = torch.load(here / "last" / STATE, weights_only=True)
    manifest = json.loads((here / "last" / MANIFEST).read_text())
    task = Classification(dynavit.load(root / RUN), 10)
    config = EngineConfig()
    trainer = Trainer(task, TrainPlan(engine=config), whole["steps_per_epoch"], whole["total"], Processes(config))
    checkpoints = Checkpoints(here)
    assert problem(checkpoints.load, trainer._check_fits, print) is None
    parameter = next(iter(whole["optimiser"]))
    optimiser = [("optimiser",), ("optimiser", parameter), ("optimiser", parameter, "exp_avg")]
    refused = 0
    for path in [*fields({name: value for name, value in whole.items() if name != "optimiser"}), *optimiser]:
        for change in (None, ("x",), (-1,), (None,), ([{}],), (torch.zeros(3),)):
            torch.save(damaged(whole, path, change), here / "last" / STATE)
            entry = {"bytes": (here / "last" / STATE).stat().st_size, "sha256": _sha256(here / "last" / STATE)}
            (here / "last" / MANIFEST).write_text(json.dumps(manifest | {"files": manifest["files"] | {STATE: entry}}))
            found = problem(checkpoints.load, trainer._check_fits, print)
            assert found is None or str(here / "last") in found, f"{path} = {change}: {found}"
            refused += found is not None
    assert refused > 3 * len(whole)


def test_a_damaged_config_is_named(root, tmp_path):
    here = Path(shutil.copytree(root, tmp_path / "copy")) / RUN
    for text in ("a: [", "- 1", "epochs: x", "epochs: .inf", "optim: 3", "optim: {clip: -1}", "seed: -1", "\x00", "engine: []"):
        (here / "config.yaml").write_text(text)
        with pytest.raises(ValueError, match=r"config\.yaml"):
            dynavit.evaluate_run(here)
