"""The page in a real browser with the real server: a small digits cascade, and the stub where a test needs faults."""

import re
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest

from deploy.serve.browser import BROWSER, Browser
from deploy.serve.live import eventually, in_background, live
from deploy.serve.on_page import (
    A_SECOND_LATER,
    LOCKED,
    MEASURED,
    OFFLINE,
    READY,
    TOLD,
    answered,
    bomb,
    named,
    stop_the_clock,
    verdicts,
    visits,
)
from deploy.serve.stub_model import CLASSES, png, stub_model
from dynavit import TrainConfig, train_run
from dynavit.data.config import AugmentConfig
from dynavit.deploy.serve.budget import decide
from dynavit.deploy.serve.limits import Limits
from dynavit.runs.calibrate import Goal, calibrate_run
from dynavit.runs.predict import predict_run
from dynavit.runs.samples import samples_of
from dynavit.runs.serve import explain
from dynavit.runs.served import open_served
from dynavit.runs.subject import Subject

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="needs a browser: install chromium"),
    pytest.mark.usefixtures("nothing_is_drawn_in_this_file"),
]

# What the page computes at every position of the slider, what the sweep says there, and what a real request gets.
EVERYWHERE = """(async asked => {
  const found = [];
  for (let at = 0; at < state.points.length; at++) {
    moveTo(at);
    const page = computed(), name = document.getElementById('name').textContent, swept = state.sweep.levels[at];
    const real = asked ? (await post('/v1/predict', state.image, {query: budgetQuery()})).results[0] : null;
    found.push({page: [page.exit, name], why: page.why, swept: [swept.exit, swept.name], real: real && [real.exit, real.name],
      confidences: state.sweep.exits.map(exit => exit.confidence)});
  }
  return found;
})"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A cascade in a second: the first exit sees only a corner of the image, so the second one is better."""
    out = tmp_path_factory.mktemp("runs") / "cascade"
    config = TrainConfig(model="dvt_vit_digits", epochs=2, batch_size=32, lr=3e-3, augment=AugmentConfig(recipe="none"))
    config.model_options = {"depth": 1, "splits": [[[5, 4, 0]], [[4, 2, 1]]]}
    train_run(config, out)
    with pytest.MonkeyPatch.context() as patch:  # nothing is timed here
        patch.setattr("dynavit.runs.calibrate.exit_milliseconds", lambda cascade, images: [1.0, 2.0])
        times = "dynavit.runs.calibrate.prediction_milliseconds"
        patch.setattr(times, lambda cascade, images, policies, size: [1.0] * len(policies))
        calibrate_run(out, Goal(accuracy=0.3), device="cpu", batch_size=32)
    return out


@pytest.fixture(scope="module")
def digits(run):
    """The run, served."""
    model = open_served(run)
    with live(model, explainer=partial(explain, model)) as running:
        running.service.samples = tuple(samples_of(Subject.of(run), 8)[0])
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def visit(browser):
    with visits(browser) as open_page:
        yield open_page


def sample_file(digits, at, directory):
    file = directory / f"sample {at}.png"
    file.write_bytes(digits.service.samples[at].png)
    return file


def test_a_dropped_file_gets_the_answer_of_predict(run, digits, visit, tmp_path):
    """B1."""
    tab = visit(digits)
    for at in (0, 3):
        file = sample_file(digits, at, tmp_path)
        tab.drop("#drop", file)
        tab.until(f"{named(file.name)} && {MEASURED}")
        (expected,) = predict_run(run, [file])
        shown = tab.run("[state.measured.name, state.measured.exit, state.measured.confidence]")
        assert shown == [expected["label"], expected["exit"], pytest.approx(expected["confidence"], abs=1e-5)]
        assert tab.text("name") == expected["label"] and verdicts(tab)[expected["exit"] - 1] == "stops here"


@pytest.mark.slow  # by default: every position, above
def test_the_ends_of_the_slider_are_the_first_and_the_last_exit(digits, visit):
    """B2."""
    tab = visit(digits)
    answered(tab)
    costs = [1e3 * exit.cumulative_gmacs for exit in digits.model.exits]
    for key, taken in (("Home", 1), ("End", 2)):
        tab.run("slider.focus()")
        tab.press(key)
        tab.until(f"{MEASURED} && state.measured.exit == {taken}")
        assert verdicts(tab)[taken - 1] == "stops here" and tab.text("differs") == ""
        assert float(re.match(r"([\d.]+) MMACs", tab.text("cost"))[1]) == pytest.approx(costs[taken - 1], rel=0.05)
        assert tab.run("state.measured.cost.gmacs") == pytest.approx(costs[taken - 1] / 1e3)
        assert tab.run("point().gmacs") == pytest.approx(costs[taken - 1] / 1e3)


def test_every_position_agrees_with_the_server(digits, visit):
    """B3: page, sweep and a real request at each position, and a dearer one never leaves earlier (I11)."""
    tab = visit(digits)
    thresholds = [point.thresholds for point in digits.model.curve.points]
    assert tab.run("state.points.map(point => point.thresholds)") == [list(each) for each in thresholds]
    seen = set()
    for sample in range(1, 9):
        tab.click(f"#samples li:nth-child({sample}) button")
        tab.until(f"state.image.name == {digits.service.samples[sample - 1].name!r} && state.sweep != null")
        asked = sample == 1  # the others from the sweep alone: a request for each position takes its time
        found = tab.run(f"{EVERYWHERE}({'true' if asked else 'false'})")
        assert len(found) == len(thresholds) > 3
        for each, wanted in zip(found, thresholds, strict=True):
            decision = decide(each["confidences"], wanted, 2)
            assert each["page"][0] == decision.exit and each["why"] == decision.why
            assert each["page"] == each["swept"] and each["real"] in (None, each["page"])
            seen.add(decision)
        exits = [each["page"][0] for each in found]
        assert exits == sorted(exits)
    assert seen == {(1, "confident"), (2, "last")}


@pytest.mark.slow  # by default: maps of each exit in tests/runs/test_serve.py, shown in test_page_states.py
def test_maps_of_every_exit(digits, visit):
    """B4."""
    tab = visit(digits)
    answered(tab)
    tab.click("[name=overlay][value=attention]")
    for at, exit in enumerate(digits.model.exits, 1):
        tab.click(f"[name=shown][value='{at}']")
        cells = "[...document.querySelectorAll('#overlay .attention rect')].map(cell => Number(cell.dataset.value))"
        rows, columns = exit.grid
        tab.until(f"document.getElementById('overlay-words').innerText.includes('{rows}×{columns}')")
        values = tab.run(cells)
        assert len(values) == rows * columns and sum(values) == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
def test_bad_large_and_dangerous_files(digits, visit, tmp_path):
    """B6: the page refuses what it can see by itself, the server the rest, also when the page is passed by."""
    tab = visit(digits)
    good = digits.service.samples[0].png
    files = {
        "words.png": b"words, not pixels",
        "half.png": good[: len(good) // 2],
        "large.png": good + bytes(20 << 20),
        "bomb.png": bomb(12_000, 12_000),
    }
    expected = dict(zip(files, ("Not an image", "This could not be read", "Too large", "Too large"), strict=True))
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        tab.choose("#file", tmp_path / name)
        told = tab.until(f"{named(name)} && {TOLD}")
        assert told.startswith(expected[name])
    passed_by = "post('/v1/sweep', {...state.image, type: 'image/png'}, {}).catch(problem => [problem.status, problem.code])"
    assert tab.run(passed_by)[0] == 413
    answered(tab)


@pytest.mark.slow  # by default: the panel in test_page_states.py, the counters in test_door.py
def test_live_mix_equals_the_counters(run, digits, visit, monkeypatch):
    """B9: after 50 scripted requests to a server of its own; that the panel forgets after a minute is tested elsewhere."""
    monkeypatch.setattr("dynavit.deploy.serve.recent.SPAN", 3600)
    with live(open_served(run)) as served:
        tab = visit(served)
        for at in range(50):
            sample = digits.service.samples[at % len(digits.service.samples)]
            assert served.predict(sample.png, f"?level={(at % 10) / 9}")[0] == 200
        mix = counted(served)
        assert sum(mix.values()) == 50 and len(mix) == 2
        images = "[...document.querySelectorAll('#mix-legend li')].map(each => Number(each.dataset.images))"
        tab.until(f"{images}.reduce((sum, n) => sum + n, 0) == 50")
        assert tab.run(images) == [mix[1], mix[2]]


def counted(served):
    """{exit: images} of the counters that Prometheus reads; not by `/metrics`, whose text may be old by 0.2 s."""
    text = generate_latest(served.service.metrics.registry)
    found = Counter()
    for exit, images in re.findall(r'dynavit_images_total\{exit="(\d)",why="\w+"\} ([\d.]+)', text.decode()):
        found[int(exit)] += int(float(images))
    return found


@pytest.mark.slow  # by default: a busy server in test_page_states.py, full queues in test_faults_load.py
def test_a_full_queue_names_its_seconds_and_then_answers(visit, tmp_path):
    """B8, with steps that wait for the test; B11: a class name that is HTML."""
    file = tmp_path / "hostile.png"
    file.write_bytes(png(0.95, label=3))
    model = stub_model()
    with live(model, limits=Limits(max_queue=32, max_per_client=32)) as served:
        tab = visit(served)
        stop_the_clock(tab)
        model.backend.gate.clear()
        results = in_background(32, lambda at: served.predict(png(0.9))[0])
        eventually(lambda: served.snapshot()["jobs"] == 32)
        tab.choose("#file", file)
        told = tab.until(TOLD)
        assert re.match(r"The server is busy\nToo many images .*Asking again in \d+ seconds?\.", told)
        model.backend.gate.set()
        assert results() == [200] * 32
        tab.until(f"{A_SECOND_LATER}, {MEASURED}")
        assert tab.text("name") == CLASSES[3] and CLASSES[3].startswith("<img")
        assert tab.run("document.querySelector('#answer img') == null")
        assert tab.run("document.getElementById('looking').hidden"), "no explainer, no overlay"


def test_token(visit, tmp_path):
    """B12."""
    secret = tmp_path / "token.txt"
    secret.write_text("open sesame, please")
    with live(token_file=secret) as served:
        tab = visit(served, wait=LOCKED)
        tab.type("wrong word")
        tab.press("Enter")
        tab.until("document.getElementById('door-words').innerText.startsWith('This token was not accepted.')")
        tab.type("open sesame, please")
        tab.press("Enter")
        tab.until(f"{READY} && document.querySelector('#figures dd') != null")


@pytest.mark.slow  # by default: budgets go with the request, test_page_states.py
def test_two_tabs_with_different_budgets_do_not_mix(digits, visit):
    """B14."""
    tabs = [visit(digits), visit(digits)]
    for tab, end in zip(tabs, ("0", "state.points.length - 1"), strict=True):
        tab.run(f"moveTo({end})")
    for tab, sample in zip(tabs, (2, 3), strict=True):
        tab.click(f"#samples li:nth-child({sample}) button")
    for at, (tab, sample) in enumerate(zip(tabs, (2, 3), strict=True)):
        tab.until(MEASURED)
        assert verdicts(tab)[at] == "stops here"
        _, _, expected = digits.predict(digits.service.samples[sample - 1].png, f"?level={at}")
        assert tab.text("name") == expected["results"][0]["name"]


@pytest.mark.slow
def test_a_killed_server_comes_back_without_a_reload(run, visit, tmp_path):
    """B7, with the command line: killed, offline, started again, ready; then ended in order."""

    def start(port):
        log = (tmp_path / "server.log").open("a")
        command = [sys.executable, "-m", "dynavit", "serve", str(run), "--port", str(port), "--quiet"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        line = server.stdout.readline()
        return server, int(re.search(r":(\d+)$", line.strip())[1])

    server, port = start(0)
    try:
        tab = visit(SimpleNamespace(port=port))
        answered(tab)
        server.kill()
        server.wait()
        server.stdout.close()
        tab.until(OFFLINE)
        tab.click("#samples li:nth-child(2) button")
        assert "sent again as soon as it does" in tab.until(TOLD)
        server, _ = start(port)
        tab.until(f"{READY} && {MEASURED} && document.getElementById('trouble').hidden", 60)
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
        tab.until(OFFLINE)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
