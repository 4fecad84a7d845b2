"""A bundle runs without the training rooms, and an ONNX bundle without torch."""

import json
import subprocess
import sys

import pytest
import torch
from PIL import Image

from deploy.test_export import CLASSES, SIZE
from dynavit.deploy.bundle.manifest import write_manifest
from dynavit.deploy.export.write_model import write_model

TRAINING = ("dynavit.engine", "dynavit.tasks", "dynavit.data", "dynavit.analysis", "dynavit.models", "timm", "torchvision")
OPTIONS = {
    "dynavit.data",
    "dynavit.data.config",
    "dynavit.engine",
    "dynavit.engine.config",
}  # what the command line is typed by


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bundle")
    preprocess = {"kind": "memory", "stored_size": [8, 8], "image_size": [8, 8], "mean": [0.5], "std": [0.5]}
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, len(CLASSES))).eval()
    facts = write_model(model, directory, SIZE, CLASSES, format="onnx", policy=None)
    write_manifest(directory, {**facts, "preprocess": preprocess})
    Image.linear_gradient("L").save(directory.parent / "x.png")
    return directory


def run(code):
    """The JSON that the code prints, and the modules it has loaded."""
    report = f"{code}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *printed, modules = done.stdout.splitlines()
    return json.loads("\n".join(printed)), set(json.loads(modules))


def of_training(modules):
    return {name for name in modules if name in TRAINING or name.startswith(tuple(f"{room}." for room in TRAINING))}


def test_in_python(bundle):
    code = f"""import json
from dynavit.deploy.bundle.runner import load_bundle
print(json.dumps(load_bundle({str(bundle)!r}).predict_files([{str(bundle.parent / "x.png")!r}])))"""
    (answer,), modules = run(code)
    assert answer["label"] in CLASSES and len(answer["top"]) == 5
    assert of_training(modules) == set() and "torch" not in modules
    assert "onnxruntime" in modules


def test_on_the_command_line(bundle):
    words = ["predict", str(bundle), str(bundle.parent / "x.png"), "--json"]
    (answer,), modules = run(f"from dynavit.cli.main import main; assert main({words!r}) == 0")
    assert answer["label"] in CLASSES and len(answer["top"]) == 3
    assert of_training(modules) <= OPTIONS and "torch" not in modules


def test_served(bundle):
    """Loaded, tested and measured; what answers over HTTP afterwards is the same process."""
    words = ["serve", str(bundle), "--check", "--quiet"]
    _, modules = run(
        f"print('[]')\nimport sys; out, sys.stdout = sys.stdout, sys.stderr\n"
        f"from dynavit.cli.main import main; assert main({words!r}) == 0; sys.stdout = out"
    )
    assert "fastapi" in modules and "onnxruntime" in modules
    assert of_training(modules) <= OPTIONS and "torch" not in modules


@pytest.mark.slow  # it imports torch; by default: the test below
def test_the_check_can_fail():
    _, modules = run("print('[]'); import dynavit.data.memory")
    assert of_training(modules) >= {"dynavit.data", "dynavit.data.memory"} and "torch" in modules


def test_what_counts_as_training_code():
    modules = {"dynavit.data", "dynavit.data.memory", "dynavit.database", "dynavit.deploy.bundle", "timm.layers", "torch"}
    assert of_training(modules) == {"dynavit.data", "dynavit.data.memory", "timm.layers"}
