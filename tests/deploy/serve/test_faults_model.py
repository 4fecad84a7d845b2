"""Faults of models, bundles and budgets: F13 to F15, F18 to F22."""

import json
import re
import shutil
import time
from pathlib import Path

import pytest
import torch

from deploy.serve.live import eventually, in_background, live
from deploy.serve.stub_model import DEADLY, NAN_FIRST, NAN_LAST, POINTS, POISON, png, stub_model
from deploy.serve.test_faults_load import clean, conserved
from dynavit.deploy import serve as room
from dynavit.deploy.bundle.manifest import write_manifest
from dynavit.deploy.export.write_model import write_model
from dynavit.deploy.serve.app import create_app
from dynavit.deploy.serve.curve import Curve, Point
from dynavit.deploy.serve.limits import Limits
from dynavit.deploy.serve.model import ExitFacts, ServedModel
from dynavit.deploy.serve.selftest import SelfTestError
from dynavit.deploy.serve.torch_backend import TorchBackend


def test_f13_one_image_that_breaks_the_model_takes_nobody_with_it():
    with live() as server:
        server.backend.gate.clear()
        first = in_background(1, lambda at: server.predict(png()))
        eventually(lambda: server.snapshot()["running"] == 1)
        batch = in_background(6, lambda at: server.predict(png(0.1, label=at % 4, flag=POISON if at == 2 else None)))
        eventually(lambda: server.snapshot()["jobs"] == 7)
        server.backend.gate.set()
        assert first()[0][0] == 200
        answers = batch()
        assert [status for status, _, _ in answers] == [200, 200, 500, 200, 200, 200]
        failed = answers[2][2]
        assert failed["code"] == "internal" and "breaks the model" not in json.dumps(failed)
        assert [found["results"][0]["label"] for status, _, found in answers if status == 200] == [0, 1, 3, 0, 1]
        clean(server)
        assert conserved(server)["failed_total"] == 1 and server.totals()["step_errors_total"] >= 1
        assert server.predict(png())[0] == 200  # the loop lives


def test_f14_confidence_that_is_no_number():
    """Never sure; at the last exit 500."""
    with live(budget="level=0") as server:
        status, _, found = server.predict(png(0.9, 0.9, flag=NAN_FIRST))
        (result,) = found["results"]
        assert (status, result["exit"], result["why"]) == (200, 2, "confident") and result["exits"][0]["confidence"] is None
        status, _, found = server.predict(png(flag=NAN_LAST))
        assert (status, found["code"]) == (500, "not_finite")
        assert conserved(server)["failed_total"] == 1
        assert server.ask("POST", "/v1/sweep", png(flag=NAN_FIRST), {"Content-Type": "image/png"})[0] == 200
        assert server.ask("GET", "/metrics")[0] == 200


def test_f15_out_of_memory_halves_batches():
    with live(limits=Limits(max_batch=8)) as server:
        server.backend.largest = 2
        server.backend.gate.clear()
        waiting = in_background(9, lambda at: server.predict(png()))
        eventually(lambda: server.snapshot()["jobs"] == 9)
        server.backend.gate.set()
        assert [status for status, _, _ in waiting()] == [200] * 9
        first, *others = server.snapshot()["batch_limits"]
        assert first in (1, 2) and others == [8, 8]  # 8, 4, 2; or 3, 1, if three were there when it began
        server.backend.largest = 0
        status, _, found = server.predict(png())
        assert (status, found["code"]) == (500, "out_of_memory")
        server.backend.largest = 10
        assert server.predict(png())[0] == 200
        clean(server)
        conserved(server)


def test_f18_clocks_that_jump_change_nothing(monkeypatch):
    """Only the monotonic clock is used: here the other one runs wild, and no file of the service asks it."""
    jumps = iter(range(0, 10**12, 10**7))
    with live() as server:
        monkeypatch.setattr(time, "time", lambda: 1.8e9 + (-1) ** next(jumps) * next(jumps))
        for _ in range(3):
            status, _, found = server.predict(png(0.1, 0.1), "?deadline_ms=5000")
            assert (status, found["results"][0]["exit"]) == (200, 3)
        assert server.ask("GET", "/v1/stats")[2]["images"] == 3
    for file in Path(room.__file__).parent.glob("*.py"):
        assert not re.search(r"\btime\.time\(|datetime\.|\blocaltime\b", file.read_text()), file


# ---- F19


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bundles") / "good"
    directory.mkdir()
    preprocess = {"kind": "memory", "stored_size": [8, 8], "image_size": [8, 8], "mean": [0.5], "std": [0.5]}
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)).eval()
    facts = write_model(model, directory, (1, 8, 8), ["a", "b", "c"], format="onnx", policy=None)
    write_manifest(directory, {**facts, "preprocess": preprocess})
    return directory


def edited(manifest, change):
    facts = json.loads(manifest.read_text())
    change(facts)
    manifest.write_text(json.dumps(facts))


def _escape(facts):
    facts["files"]["../outside"] = facts["files"]["model.onnx"]


def _pickle(path):
    (path / "model.onnx").write_bytes(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os")


DAMAGE = {
    "wrong checksum": (
        lambda path: (path / "model.onnx").write_bytes((path / "model.onnx").read_bytes()[:-1] + b"x"),
        "model.onnx",
    ),
    "missing file": (lambda path: (path / "model.onnx").unlink(), "model.onnx"),
    "too few classes": (lambda path: edited(path / "manifest.json", lambda facts: facts["classes"].pop()), "2 classes"),
    "pickle inside": (_pickle, "model.onnx"),
    "path out of the bundle": (lambda path: edited(path / "manifest.json", _escape), "outside"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "manifest"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_f19_damaged_bundles_are_refused_by_name(bundle, tmp_path, name):
    damage, named = DAMAGE[name]
    shutil.copytree(bundle, tmp_path / "b")
    create_app(tmp_path / "b")
    damage(tmp_path / "b")
    with pytest.raises(ValueError, match="(?s)" + re.escape(named) + "|bundle"):
        create_app(tmp_path / "b")


def test_f19_a_link_out_of_the_bundle(bundle, tmp_path):
    shutil.copytree(bundle, tmp_path / "b")
    (tmp_path / "elsewhere").write_bytes((bundle / "model.onnx").read_bytes())
    (tmp_path / "b" / "model.onnx").unlink()
    (tmp_path / "b" / "model.onnx").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="without links"):
        create_app(tmp_path / "b")


def test_f19_names_of_classes_beyond_the_model(bundle, tmp_path):
    shutil.copytree(bundle, tmp_path / "b")
    edited(tmp_path / "b" / "manifest.json", lambda facts: facts["classes"].append("d"))
    with pytest.raises(SelfTestError, match="names 4 classes"):
        create_app(tmp_path / "b")


# ---- F20, F21


def of_torch(model):
    facts = [ExitFacts(None, 1.0, 1.0, 0)]
    preprocess = {"kind": "memory", "stored_size": [8, 8], "image_size": [8, 8], "mean": [0.5], "std": [0.5]}
    names = {"name": "m", "version": "1", "classes": ["a", "b", "c"], "preprocess": preprocess}
    return ServedModel(TorchBackend(model), exits=facts, curve=Curve.uncalibrated([1.0]), **names)


def with_batch_statistics():
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(64, track_running_stats=False)  # in evaluation, too
    return torch.nn.Sequential(torch.nn.Flatten(), norm, torch.nn.Linear(64, 3))


def test_f20_training_mode_and_company_that_matters():
    with pytest.raises(SelfTestError, match="training mode"):
        create_app(of_torch(with_batch_statistics().train()))
    with pytest.raises(SelfTestError, match=r"depends on its company|more than 1 value"):
        create_app(of_torch(torch.nn.Sequential(Mixing(), torch.nn.Flatten(), torch.nn.Linear(64, 3)).eval()))


class Mixing(torch.nn.Module):
    def forward(self, images):
        return images - images.mean(0)


def test_f21_a_model_without_exits_or_calibration():
    """One exit: nothing to choose. No calibration: a budget is the deepest exit."""
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)).eval()
    with live(of_torch(plain)) as server:
        status, _, found = server.predict(png())
        assert status == 200 and (found["results"][0]["exit"], found["results"][0]["why"]) == (1, "last")
        assert server.ask("GET", "/v1/curve")[2]["points"] == []
    with live(stub_model(points=(), default=None)) as server:
        curve = server.ask("GET", "/v1/curve")[2]
        assert curve["points"] == [] and not curve["calibrated"] and "deepest exit" in curve["note"]
        assert server.predict(png())[2]["results"][0]["exit"] == 3
        assert server.predict(png(), "?max_exit=1")[2]["results"][0]["why"] == "cap"
        assert server.predict(png(), "?accuracy=0.9")[0] == 422
        assert server.ask("GET", "/v1/info")[2]["notes"] == ["not calibrated"]


def test_f21_thresholds_that_fall_are_left_out_with_a_note():
    falling = [POINTS[0], Point((0.9, 0.9), 1.5, 0.85), POINTS[1], POINTS[3]]
    model = stub_model(points=falling, default=POINTS[3])
    assert len(model.curve.points) == 3 and "1 of 4 calibration points" in model.notes[0]
    with live(model) as server:
        assert server.ask("GET", "/v1/info")[2]["notes"] == model.notes


# ---- F22


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("gmacs=nan", None),
        ("gmacs=inf", None),
        ("gmacs=-1", None),
        ("gmacs=abc", None),
        ("gmacs=0.5", "gmacs from 1 to 4"),
        ("accuracy=0.99", "accuracy from 0.8 to 0.95"),
        ("accuracy=1.5", None),
        ("level=2", None),
        ("level=0.5&gmacs=2", None),
        ("max_exit=4", "max_exit from 1 to 3"),
        ("max_exit=0", None),
        ("max_exit=1.5", None),
        ("max_gmacs=0.5", "max_gmacs from 1 to 4"),
        ("deadline_ms=0", None),
        ("deadline_ms=1e300", None),
        ("on_deadline=never", None),
        ("thresholds=0.5", None),
        ("thresholds=0.5,nan", None),
        ("thresholds=0.5,x", None),
        ("degrade=perhaps", None),
        ("latency_ms=0.0000001", "latency_ms from"),
    ],
)
def test_f22_budgets_that_cannot_be(one_server, query, hint):
    status, _, found = one_server.predict(png(), f"?{query}")
    assert (status, found["code"]) == (422, "budget"), found
    assert hint is None or hint in found["hint"]


@pytest.mark.parametrize("budget", [{"gmacs": float("nan")}, {"gmacs": 10**400}, {"level": "1"}, {"level": True}, {"price": 1}])
def test_f22_the_same_as_json(one_server, budget):
    body = json.dumps({"images": [{"b64": ""}], "budget": budget}).encode()
    status, _, found = one_server.ask("POST", "/v1/predict", body, {"Content-Type": "application/json"})
    assert status in (400, 422) and found["code"] in ("budget", "json")


def test_waiting_for_company_is_an_option():
    with live(batch_wait_ms=1.0) as server:
        assert server.service.engine.scheduler.batch_wait == 0.001 and server.predict(png())[0] == 200
    with live() as server:
        assert server.service.engine.scheduler.batch_wait == 0


def test_f15_batches_that_do_not_fit_at_the_start():
    model = stub_model()
    model.backend.largest, model.backend.faulty = 20, True
    with live(model, limits=Limits(max_batch=32)) as server:
        assert server.snapshot()["batch_limits"] == [16] * 3
        assert "more than 16 images do not fit" in server.ask("GET", "/v1/info")[2]["notes"][-1]


@pytest.fixture(scope="module")
def one_server():
    with live() as running:
        yield running


def test_the_stub_can_kill_its_thread():
    model = stub_model()
    model.backend.faulty = True
    with pytest.raises(SystemExit):
        model.step(model.begin([model.prepare(_opened(png(flag=DEADLY)))]))


def _opened(data):
    import io

    from PIL import Image

    return Image.open(io.BytesIO(data))
