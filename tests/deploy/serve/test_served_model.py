"""Real models in the service: answers are those of `predict`, whatever the company; what is refused before it is served."""

import asyncio
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from deploy.test_cascade_export import THREE, cascade
from deploy.test_export import CLASSES, SIZE, built
from dynavit.deploy.bundle.manifest import MANIFEST, write_manifest
from dynavit.deploy.bundle.prepare import prepare
from dynavit.deploy.export.write_model import write_model
from dynavit.deploy.serve.budget import Budget
from dynavit.deploy.serve.costs import Costs, Line
from dynavit.deploy.serve.curve import Applied, Curve
from dynavit.deploy.serve.engine import Engine
from dynavit.deploy.serve.model import ExitFacts, ServedModel, carried_bytes
from dynavit.deploy.serve.scheduler import Scheduler
from dynavit.deploy.serve.selftest import SelfTestError
from dynavit.deploy.serve.torch_backend import TorchBackend
from dynavit.models.cascade.policy import ExitPolicy

PREPROCESS = {"kind": "memory", "stored_size": [8, 8], "image_size": [8, 8], "mean": [0.5], "std": [0.25]}


def served(model, classes=CLASSES, kind="max_softmax"):
    backend = TorchBackend(model.eval())
    carried = carried_bytes(backend, SIZE)
    exits = [ExitFacts(None, 1.0, 1.0 + at, size) for at, size in enumerate(carried)]
    curve = Curve.uncalibrated([exit.cumulative_gmacs for exit in exits])
    return ServedModel(
        backend,
        name="test",
        version="0",
        classes=classes,
        exits=exits,
        curve=curve,
        preprocess=PREPROCESS,
        confidence_kind=kind,
    )


def noise(n, seed=3):
    return np.random.default_rng(seed).integers(0, 256, (n, *SIZE), np.uint8)


def all_answers(model, entries, applied, clients=3, batch=4):
    """Outcomes of images that are submitted at once, so that they meet."""

    async def main():
        costs = Costs([Line(1e-3, 1e-5)] * len(model.exits))  # where company pays, so that survivors wait for it
        scheduler = Scheduler(len(model.exits), [batch] * len(model.exits), costs, [exit.state_bytes for exit in model.exits])
        engine = Engine(model, scheduler)
        engine.start()
        try:
            calls = [engine.submit(entry, applied, str(at % clients)) for at, entry in enumerate(entries)]
            return await asyncio.gather(*calls), scheduler
        finally:
            engine.stop()

    return asyncio.run(main())


def thresholds_in_the_middle(model, images, kind="max_softmax"):
    """About half of the images leave at each exit, and none is close to a threshold."""
    with torch.no_grad():
        exits = model(images)
    found = []
    for logits in exits[:-1]:
        conf = ExitPolicy((-1.0,), kind).confidence(logits).sort().values
        half = len(conf) // 2
        found.append(float(conf[half - 1] + conf[half]) / 2)
    return tuple(found)


@pytest.mark.parametrize("kind", ["max_softmax", "margin", "entropy"])
def test_answers_are_those_of_predict(kind):
    """A8: class, exit and confidence of regrouped images."""
    model = cascade(THREE)
    ours = served(model, kind=kind)
    entries = noise(60)
    images = torch.from_numpy((entries / np.float32(255) - 0.5) / 0.25).float()
    thresholds = thresholds_in_the_middle(model, images, kind)
    expected = model.predict(images, ExitPolicy((*thresholds, -1.0), kind))
    outcomes, scheduler = all_answers(ours, list(entries), Applied(thresholds, 3))
    assert [outcome.exit - 1 for outcome in outcomes] == expected.exit.tolist()
    assert [outcome.answer.label for outcome in outcomes] == expected.labels.tolist()
    found = [outcome.answer.confidence for outcome in outcomes]
    assert np.abs(np.array(found) - expected.confidence.numpy()).max() <= 1e-5
    assert sum(scheduler.regrouped) > 0 and min(np.bincount(expected.exit)) > 0


def test_a_single_image_is_equal_to_the_bit():
    model = cascade(THREE)
    ours = served(model)
    (outcome,), _ = all_answers(ours, list(noise(1)), Applied((2.0, 2.0), 3))
    with torch.no_grad():
        exact = [logits.softmax(-1).amax(-1).item() for logits in model(ours.begin(noise(1)).images)]
    assert [answer.confidence for answer in outcome.exits] == exact


def test_a_model_without_exits_has_one():
    model = built("ln")
    ours = served(model)
    outcomes, _ = all_answers(ours, list(noise(9)), ours.curve.apply(Budget()))
    with torch.no_grad():
        logits = model(torch.from_numpy((noise(9) / np.float32(255) - 0.5) / 0.25).float())
    assert [outcome.answer.label for outcome in outcomes] == logits.argmax(-1).tolist()
    assert {(outcome.exit, outcome.why) for outcome in outcomes} == {(1, "last")}
    ours.self_test()


def test_bytes_wait_and_floats_pass():
    """Entries of bytes are normalised inside the batch exactly as files are; floats are the model's own input."""
    ours = served(cascade())
    picture = Image.fromarray(noise(1)[0, 0])
    entry = ours.prepare(picture)
    assert entry.dtype == np.uint8 and entry.shape == ours.entry_size
    exact = ours.begin([entry]).images.numpy()
    mixed = ours.begin([exact[0], entry]).images.numpy()
    assert np.array_equal(mixed[0], exact[0]) and np.array_equal(mixed[1], exact[0])


@pytest.mark.parametrize(
    "description",
    [
        {
            "kind": "files",
            "image_size": [24, 24],
            "crop_pct": 0.875,
            "interpolation": "bicubic",
            "mean": [0.4] * 3,
            "std": [0.2] * 3,
        },
        {"kind": "memory", "stored_size": [8, 8], "image_size": [10, 10], "mean": [0.5], "std": [0.25]},
        {"kind": "memory", "stored_size": [8, 8], "image_size": [20, 20], "mean": [0.5], "std": [0.25]},
    ],
)
def test_batches_are_prepared_like_files(tmp_path, description):
    pictures = []
    for number in range(3):
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (30 + number, 40, 3), np.uint8)).save(
            tmp_path / f"{number}.png"
        )
        pictures.append(Image.open(tmp_path / f"{number}.png"))
    ours = served(cascade())
    ours.preprocess = description
    ours.backend.begin = lambda images: images
    together = ours.begin([ours.prepare(picture) for picture in pictures])
    for number, found in enumerate(together):
        assert np.array_equal(found, prepare(tmp_path / f"{number}.png", description))


# ---- The test at the start


def test_self_test_passes():
    served(cascade(THREE)).self_test()


def test_training_mode_is_refused():
    """F20"""
    ours = served(cascade())
    ours.backend.model.exits[0].train()
    with pytest.raises(SelfTestError, match=r"exits\.0 is in training mode"):
        ours.self_test()


def test_batch_statistics_are_refused():
    """F20: a model whose answers depend on company, in evaluation mode."""

    class Mixing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, len(CLASSES))

        def forward(self, x):
            y = self.layer(x.flatten(1))
            return y - 0.1 * y.mean(0)

    with pytest.raises(SelfTestError, match="depends on its company"):
        served(Mixing()).self_test()


def test_states_that_mix_rows_are_refused():
    ours = served(cascade(THREE))
    join = ours.backend.join
    ours.backend.join = lambda states: join(states[::-1])
    with pytest.raises(SelfTestError, match="regrouped between exits"):
        ours.self_test()


def test_wrong_number_of_classes_is_refused():
    with pytest.raises(SelfTestError, match=r"names 3 classes"):
        served(cascade(), classes=list("abc")).self_test()


def test_nan_is_refused():
    model = cascade()
    with torch.no_grad():
        model.exits[1].head.bias.fill_(float("nan"))
    with pytest.raises(SelfTestError, match="exit 2"):
        served(model).self_test()


# ---- Bundles


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A cascade of two exits, of an earlier version: nothing about costs and calibration."""
    directory = tmp_path_factory.mktemp("bundle")
    model = cascade()
    policy = ExitPolicy((0.5, -1.0), gmacs=(1.0, 3.0), shares=(0.25, 0.75), expected_accuracy=0.9)
    facts = write_model(model, directory, SIZE, CLASSES, format="pt2", policy=policy)
    write_manifest(directory, {**facts, "preprocess": PREPROCESS})
    return model, directory


def test_bundle(bundle):
    model, directory = bundle
    ours = ServedModel.open(directory, trust_pt2=True)
    ours.self_test()
    assert [exit.cumulative_gmacs for exit in ours.exits] == [1.0, 3.0] and ours.exits[1].gmacs == 2.0
    assert ours.exits[0].state_bytes == carried_bytes(TorchBackend(model), SIZE)[0] > 0 == ours.exits[1].state_bytes
    default = ours.curve.apply(Budget())
    assert default.thresholds == (0.5,) and default.expected_gmacs == pytest.approx(2.5) and default.expected_accuracy == 0.9
    assert not ours.curve.calibrated and "not calibrated" in ours.notes[0]
    entries = noise(40)
    expected = model.predict(torch.from_numpy((entries / np.float32(255) - 0.5) / 0.25).float(), ExitPolicy((0.5, -1.0)))
    outcomes, _ = all_answers(ours, list(entries), default)
    assert [outcome.exit - 1 for outcome in outcomes] == expected.exit.tolist()
    assert [outcome.answer.label for outcome in outcomes] == expected.labels.tolist()


def rewritten(directory, target, without="", **facts):
    """A copy whose manifest says something else."""
    shutil.copytree(directory, target)
    plain = json.loads((target / MANIFEST).read_text())
    (target / MANIFEST).unlink()
    kept = {name: value for name, value in plain.items() if name not in ("files", "format", without)}
    write_manifest(target, {**kept, **facts})
    return target


def test_bundle_with_a_curve(bundle, tmp_path):
    """3.1: exits and calibration in the manifest; points that fall are left out with a note (F21)."""
    exits = [{"grid": [2, 2], "gmacs": 1.0, "cumulative_gmacs": 1.0, "state_bytes": 100}]
    exits += [{"grid": None, "gmacs": 2.0, "cumulative_gmacs": 3.0, "state_bytes": 0}]
    rows = [(None, 1.0, 0.5), (0.6, 2.0, 0.8), (0.4, 2.2, 0.9), (0.8, 2.6, 0.85), (1e8, 3.0, 0.8)]
    points = [{"thresholds": [t, None], "gmacs": g, "accuracy": a, "shares": [0.5, 0.5]} for t, g, a in rows]
    calibration = {"data": "digits test", "n": 360, "seed": 0, "points": points, "default": points[1]}
    ours = ServedModel.open(
        rewritten(bundle[1], tmp_path / "curve", exits=exits, calibration=calibration, model_version="abc"), trust_pt2=True
    )
    assert ours.version == "abc" and ours.exits[0].grid == (2, 2) and ours.exits[0].state_bytes == 100
    assert [point.thresholds[0] for point in ours.curve.points] == [0.0, 0.6, 0.8, 1e8] and ours.curve.calibrated
    assert len(ours.notes) == 1 and "1 of 5" in ours.notes[0]
    assert ours.curve.apply(Budget()).thresholds == (0.6,)
    low, high = ours.curve.points[1].accuracy_ci
    assert low < 0.8 < high


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"exits": []}, "0 exits"),
        ({"exits": [{"grid": None}] * 2}, "missing"),
        (
            {
                "calibration": {
                    "data": "x",
                    "n": 3,
                    "seed": 0,
                    "points": [{"thresholds": [0.1] * 5, "gmacs": 1.0, "accuracy": 1.0}],
                }
            },
            "5 thr",
        ),
        ({"calibration": 3}, "calibration"),
    ],
)
def test_damaged_manifest(bundle, tmp_path, facts, said):
    """F19"""
    with pytest.raises(ValueError, match=said):
        ServedModel.open(rewritten(bundle[1], tmp_path / "damaged", **facts), trust_pt2=True)


def test_what_is_not_opened(bundle, tmp_path):
    with pytest.raises(ValueError, match="--trust-pt2"):
        ServedModel.open(bundle[1])
    with pytest.raises(ValueError, match="not a bundle"):
        ServedModel.open(tmp_path)
    with pytest.raises(ValueError, match="on the CPU"):
        ServedModel.open(bundle[1], device="cuda")
    with pytest.raises(ValueError, match="preprocess is missing"):
        ServedModel.open(rewritten(bundle[1], tmp_path / "plain", without="preprocess"), trust_pt2=True)


@pytest.mark.slow
def test_onnx_bundle(tmp_path):
    """One file for each exit, regrouped; torch is not asked."""
    model = cascade(THREE)
    facts = write_model(model, tmp_path, SIZE, CLASSES, format="onnx", policy=None)
    write_manifest(tmp_path, {**facts, "preprocess": PREPROCESS})
    ours = ServedModel.open(tmp_path)
    ours.self_test()
    assert "does not say what its exits cost" in ours.notes[0]
    entries = noise(60)
    images = torch.from_numpy((entries / np.float32(255) - 0.5) / 0.25).float()
    thresholds = thresholds_in_the_middle(model, images)
    expected = model.predict(images, ExitPolicy((*thresholds, -1.0)))
    outcomes, scheduler = all_answers(ours, list(entries), Applied(thresholds, 3))
    assert [outcome.exit - 1 for outcome in outcomes] == expected.exit.tolist()
    assert [outcome.answer.label for outcome in outcomes] == expected.labels.tolist()
    assert sum(scheduler.regrouped) > 0


def test_scheduling_needs_no_torch():
    """The pure part is imported without anything heavy."""
    code = "import sys, dynavit.deploy.serve.scheduler as s; assert not {'torch', 'asyncio', 'numpy'} & set(sys.modules), 1"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
