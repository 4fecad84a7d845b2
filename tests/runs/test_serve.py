"""A run and its bundle as a service: the same answers as `dynavit predict`, samples, maps, the command line."""

import io
import json
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from deploy.serve.live import in_background, live
from dynavit.analysis.inside.exit_maps import exit_maps, spread
from dynavit.cli.main import main
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.digits import open_digits
from dynavit.deploy.serve.limits import Limits
from dynavit.runs.calibrate import Goal, calibrate_run
from dynavit.runs.config import TrainConfig
from dynavit.runs.export import export_run
from dynavit.runs.predict import predict_run
from dynavit.runs.samples import samples_of
from dynavit.runs.serve import explain, explainer_of, serve, service_app
from dynavit.runs.served import open_served
from dynavit.runs.subject import Subject
from dynavit.runs.train import train_run

pytestmark = pytest.mark.usefixtures("costs_in_few_rounds", "nothing_is_drawn_in_this_file")

CLOSE = 1e-5


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A calibrated cascade in a few seconds."""
    out = tmp_path_factory.mktemp("runs") / "cascade"
    config = TrainConfig(model="dvt_vit_digits", epochs=1, batch_size=32, lr=3e-3, augment=AugmentConfig(recipe="none"))
    config.model_options = {"depth": 1, "splits": [[[5, 8, 0]], [[8, 8, 0]]]}
    train_run(config, out)
    with pytest.MonkeyPatch.context() as patch:  # nothing is timed here
        patch.setattr("dynavit.runs.calibrate.exit_milliseconds", lambda cascade, images: [1.0, 2.0])
        times = lambda cascade, images, policies, batch_size: [1.0] * len(policies)  # noqa: E731
        patch.setattr("dynavit.runs.calibrate.prediction_milliseconds", times)
        calibrate_run(out, Goal(p=20))
    return out


@pytest.fixture(scope="module")
def bundle(run):
    return export_run(run)[0]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """All 1,797 digits as PNG files."""
    directory = tmp_path_factory.mktemp("digits")
    data = open_digits(None, DataConfig())
    images = torch.cat([split.images for split in data.splits.values()])
    paths = []
    for at, image in enumerate(images[:, 0].numpy()):
        paths.append(directory / f"{at:04}.png")
        Image.fromarray(image).save(paths[-1])
    return paths


def parity(model, path, files, clients):
    """Answers over HTTP beside those of `dynavit predict`, many at once; how many are equal to the bit."""
    expected = predict_run(path, files, top=3)
    thresholds = model.curve.default.thresholds
    with live(model, limits=Limits(max_queue=1024, max_per_client=1024)) as server:

        def ask(which):
            found = []
            for at in range(which, len(files), clients):
                status, _, body = server.predict(files[at].read_bytes(), "?top=3")
                assert status == 200
                found.append((at, body["results"][0]))
            return found

        results = dict(pair for found in in_background(clients, ask)() for pair in found)
        batches = server.ask("GET", "/v1/stats")[2]["exits"]
    exact, exits = 0, []
    for at, wanted in enumerate(expected):
        got = results[at]
        near = any(abs(ran["confidence"] - threshold) < CLOSE for ran, threshold in zip(got["exits"], thresholds, strict=False))
        if not near:
            assert (got["name"], got["exit"]) == (wanted["label"], wanted["exit"]), files[at]
            assert abs(got["confidence"] - wanted["confidence"]) <= CLOSE
            assert [each["name"] for each in got["top"]] == [each["label"] for each in wanted["top"]]
        exact += got["confidence"] == wanted["confidence"]
        exits.append(got["exit"])
    assert set(exits) == {1, 2}, "images leave at both exits, or the comparison says little"
    return exact / len(files), max(exit["batch"] for exit in batches)


def test_a8_answers_are_those_of_predict(run, files):
    exact, _ = parity(open_served(run), run, files[::36], clients=1)
    assert exact == 1  # alone in its batch, to the bit


@pytest.mark.slow
def test_a8_all_digits_under_concurrent_load(run, bundle, files):
    for path in (run, bundle):
        _, batch = parity(open_served(path), path, files, clients=16)
        assert batch > 1  # there was company


def test_samples_are_easy_and_hard_images_of_the_run(run):
    found, note = samples_of(Subject(run=run), 6)
    assert note is None and len(found) == 6
    with Image.open(io.BytesIO(found[0].png)) as image:
        assert image.size == (8, 8)
    assert samples_of(Subject(run=run), 0) == ([], None)


@pytest.mark.slow
def test_samples_of_a_bundle_are_the_built_in_digits(bundle):
    found, _ = samples_of(Subject(run=bundle), 4)  # known by its classes and size
    assert len(found) == 4 and len({sample.name for sample in found}) == 4


def test_maps_of_each_exit(run):
    model = open_served(run)
    entry = model.prepare(Image.effect_noise((8, 8), 60))
    first, second = (explain(model, entry, exit) for exit in (1, 2))
    for found in (first, second):
        values = np.array(found["attention"])
        assert list(values.shape) == found["grid"] and values.sum() == pytest.approx(1) and (values >= 0).all()
    assert first["change"] is None
    before = spread(torch.tensor(first["attention"], dtype=torch.float64), tuple(second["grid"]))
    assert np.array(second["change"]) == pytest.approx((torch.tensor(second["attention"]) - before).abs().numpy())
    with live(model, explainer=partial(explain, model)) as server:
        buffer = io.BytesIO()
        Image.effect_noise((8, 8), 60).save(buffer, "PNG")
        status, _, found = server.ask("POST", "/v1/explain?exit=2", buffer.getvalue(), {"Content-Type": "image/png"})
        assert status == 200 and found["grid"] == second["grid"]


def test_mass_is_spread_by_area():
    """Each old cell is cut along the lines of the new grid, and its mass goes where its area goes."""
    values = torch.rand(3, 2, dtype=torch.float64)
    for grid in ((3, 2), (4, 4), (2, 5), (1, 1), (6, 4)):
        fine = values.repeat_interleave(grid[0] * 7, 0).repeat_interleave(grid[1] * 7, 1) / (grid[0] * grid[1] * 49)
        wanted = fine.reshape(grid[0], -1, grid[1], fine.shape[1] // grid[1]).sum((1, 3))
        torch.testing.assert_close(spread(values, grid), wanted)


def test_maps_of_a_model_without_exits():
    import dynavit

    torch.manual_seed(0)
    model = dynavit.create_model("vit_micro", num_classes=3, img_size=32).eval()
    (found,) = exit_maps(model, torch.rand(1, 3, 32, 32))
    assert found["grid"] == [16, 16] and np.sum(found["attention"]) == pytest.approx(1) and found["change"] is None


def test_a_model_without_attention_has_no_maps(run):
    """The page hides them, and nobody gets a 500 for asking."""
    model = open_served(run)
    assert explainer_of(model) is not None and not [note for note in model.notes if "attention" in note]
    model.backend.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    assert explainer_of(model) is None and "the model has no attention" in model.notes[-1]


def test_check_prints_the_limits(run, capsys):
    assert main(["serve", str(run), "--check", "--max-queue", "99"]) == 0
    told = capsys.readouterr()
    assert "max_queue               99" in told.out and "dvt_vit_digits" in told.err and "ms per image" in told.err


def test_the_app_of_a_run_has_everything(run):
    app = service_app(run, samples=3)
    service = app.state.service
    assert len(service.samples) == 3 and service.explainer is not None and service.model.curve.calibrated
    assert service.model.calibration == {"data": "digits test", "n": 360, "seed": 0}


def test_options_are_named_where_they_do_not_exist(run):
    with pytest.raises(ValueError, match="max_queue"):
        serve(run, max_que=3)


@pytest.mark.slow
def test_the_command_prints_an_address_and_answers(run):
    """From the shell to an answer, and the end by a signal."""
    import os
    import signal
    import subprocess
    import sys
    from urllib.request import Request, urlopen

    words = [sys.executable, "-m", "dynavit", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("serving dvt_vit_digits on http://127.0.0.1:"), line or process.stderr.read()
        url = line.split()[-1]
        with urlopen(url) as page:
            assert b"<!DOCTYPE html>" in page.read(100)
        with urlopen(f"{url}/v1/samples") as answer:
            sample = json.load(answer)["samples"][0]["data_uri"]
        with urlopen(sample) as picture:  # a data: address
            image = picture.read()
        with urlopen(Request(f"{url}/v1/predict?accuracy=0.5", image, {"Content-Type": "image/png"})) as answer:
            assert json.load(answer)["results"][0]["status"] == 200
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
        assert process.returncode == 0 and "Ctrl-C stops it" in told
    finally:
        process.kill()
        process.communicate()
