"""The page in a real browser, with a server that does what a test tells it to: states, words, widths, keys.

`test_page_served.py` has the real server.
"""

import json
import math
import random
import re

import pytest

from colours import contrast, luminance
from deploy.serve.browser import BROWSER, Browser
from deploy.serve.fake_server import Fake, picture
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

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs a browser: install chromium")

# Elements that reach beyond the window, but for those that are meant not to be seen.
TOO_WIDE = """[...document.querySelectorAll('main *')]
  .filter(each => !each.closest('#overlay, .unseen, .chip input, .picker input'))
  .filter(each => each.getBoundingClientRect().right > innerWidth + .5).map(each => each.outerHTML.slice(0, 80))"""
# Words that are seen, their colour, that of the first opaque thing under them, and their size.
WORDS = """[...document.querySelectorAll('p, li, dt, dd, span, b, h2, summary, label')]
  .filter(each => each.closest('main') && each.checkVisibility() && each.innerText.trim() && !each.closest('.button, .unseen'))
  .map(each => {
    const style = getComputedStyle(each), paper = element => getComputedStyle(element).backgroundColor;
    let under = each;
    while (paper(under) == 'rgba(0, 0, 0, 0)') under = under.parentElement;
    return [each.innerText.slice(0, 30), style.color, paper(under), parseFloat(style.fontSize)];
  })"""
# Whether the element with the focus shows it, itself or on what stands for it.
SHOWS_FOCUS = """(at => at.id == 'slider' || [at, at.nextElementSibling, at.parentElement]
  .some(each => each && getComputedStyle(each).outlineStyle != 'none'))(document.activeElement)"""
RUN = "document.documentElement.dataset.ran = 1"
HOSTILE = f'<img src="data:," onerror="{RUN}"><script>{RUN}</script>'
BUSY = (503, {"error": "too many images are waiting", "code": "queue_full"}, 1)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def fake():
    started = Fake()
    yield started
    started.stop()


@pytest.fixture
def visit(browser):
    with visits(browser) as open_page:
        yield open_page


# ---- The rule


def test_the_rule_is_the_servers(fake, visit):
    """B3, the rule by itself: every confidence on either side of, at, and without a threshold, every cap."""
    tab = visit(fake)
    values, dice = [0.0, 0.3, 0.5, 0.5 + 1e-9, 0.9, 1.0, math.nan], random.Random(0)
    cases = [
        ([dice.choice(values) for _ in range(exits)], [dice.choice([0.0, 0.5, 0.9, 1e8]) for _ in range(exits - 1)], cap)
        for exits in (1, 2, 3, 5)
        for cap in range(1, exits + 1)
        for _ in range(40)
    ]
    as_json = json.dumps([[[None if math.isnan(c) else c for c in confidences], *rest] for confidences, *rest in cases])
    found = tab.run(f"{as_json}.map(([c, t, cap]) => decide(c, t, cap)).map(({{exit, why}}) => [exit, why])")
    assert found == [list(plain_rule(*case)) for case in cases]
    assert {why for _, why in found} == {"confident", "last", "cap"}


def plain_rule(confidences, thresholds, cap):
    """The first exit that is sure enough, the cap at the latest."""
    sure = [k for k, (c, t) in enumerate(zip(confidences, thresholds, strict=False), 1) if c >= t and k <= cap]
    exit = min([*sure, cap])
    return exit, "last" if exit == len(confidences) else "confident" if exit in sure else "cap"


# ---- Budget


def test_the_slider_moves_at_once_and_the_server_is_asked_when_it_rests(fake, visit):
    tab = visit(fake)
    answered(tab)
    armed = (
        "(set => { const found = []; setTimeout = (act, ms) => found.push(ms); moveTo(3); setTimeout = set; return found; })"
    )
    assert tab.run(f"{armed}(setTimeout)") == [300], "milliseconds of rest before the server is asked"
    before = fake.asked["/v1/predict"]
    exits = tab.run("""state.points.map((_, at) => { moveTo(at);
        return [at, [...document.querySelectorAll('.exit')].findIndex(row => row.classList.contains('taken')) + 1,
                document.getElementById('source').dataset.is]; })""")
    assert [source for *_, source in exits] == ["computed"] * 12
    taken = [exit for _, exit, _ in exits]
    assert taken == sorted(taken) and taken[0] == 1 and taken[-1] == 3, "more budget never leaves earlier (I11)"
    tab.until(MEASURED)
    assert fake.asked["/v1/predict"] == before + 1, "one request for the place where it rests"
    assert fake.budgets[-1] == {"level": "1", "max_exit": "3"}
    assert tab.text("differs") == ""


def test_keys_units_and_words_for_the_ear(fake, visit):
    tab = visit(fake)
    said = "document.getElementById('slider').getAttribute('aria-valuetext')"
    tab.run("document.getElementById('slider').focus()")
    tab.press("Home")
    assert tab.run(said) == "0.47 GMACs, expected accuracy 65.2 per cent"
    tab.press("End")
    assert tab.run(said) == "3.59 GMACs, expected accuracy 79.0 per cent"
    tab.press("ArrowLeft", "ArrowLeft", "ArrowRight")
    assert tab.run("state.position") == 10
    point = fake.points()[10]
    right, cost = f"{100 * point['accuracy']:.1f}", f"{point['gmacs']:.2f} GMACs"
    assert tab.text("reading") == f"about {cost} on average · expected {right} ± 0.4 % right"
    tab.click("[name=unit][value=accuracy]")
    assert tab.run(said) == f"accuracy {right} per cent, {cost}"
    assert tab.text("reading") == f"about {right} ± 0.4 % right · {cost} on average"
    tab.click("[name=unit][value=ms]")
    one, two, three = (3.8 + 7.5 * 2**k for k in range(3))
    time = sum(share * ms for share, ms in zip(point["shares"], (one, one + two, one + two + three), strict=True))
    assert tab.text("reading") == f"about {time:.0f} ms of computing on average · {cost}"
    assert tab.run("state.position") == 10
    tab.click("#default")
    assert tab.run("state.position") == 8, "where the server's own budget stands"


def test_limits_go_out_with_the_request(fake, visit):
    tab = visit(fake)
    tab.run("moveTo(11); cap.value = 1; cap.dispatchEvent(new Event('change'))")
    tab.run("deadline.focus()")
    tab.type("50")
    answered(tab)
    assert fake.budgets[-1] == {"level": "1", "max_exit": "1", "deadline_ms": "50"}
    assert "no deeper exit is allowed" in tab.text("left") and verdicts(tab) == ["stops here", "not run", "not run"]
    fake.refuse = [(504, {"error": "the deadline passed", "code": "deadline"}, None)]
    tab.run("moveTo(10)")
    assert "No answer within 50 ms" in tab.until("document.getElementById('differs').innerText")


def test_a_disagreement_is_told(fake, visit):
    fake.disagree = True
    tab = visit(fake)
    tab.run("moveTo(0)")
    answered(tab)
    assert tab.text("differs") == "The server left at exit 3; from the run of all exits this page had computed exit 1."
    assert verdicts(tab)[2] == "stops here", "what the server did stands"


def test_models_without_calibration_or_with_one_exit(visit):
    one, uncalibrated = Fake(exits=1), Fake(exits=2, calibrated=False, explain=False)
    try:
        tab = visit(one)
        assert tab.run("document.getElementById('slider').disabled") and "One exit" in tab.text("why-not")
        answered(tab)
        assert tab.text("left") == "the only exit" and one.budgets[-1] == {}
        tab = visit(uncalibrated)
        assert "not calibrated" in tab.text("why-not")
        assert tab.run("[slider.min, slider.max]") == ["0", "1"]
        assert tab.run("['units', 'looking'].map(id => document.getElementById(id).hidden)") == [True, True]
        assert tab.text("reading") == "1.44 MMACs for every image, exit 2 of 2"
        tab.run("moveTo(0)")
        answered(tab)
        assert verdicts(tab) == ["stops here", "not run"] and uncalibrated.budgets[-1] == {"level": "0", "max_exit": "2"}
    finally:
        one.stop()
        uncalibrated.stop()


# ---- Images


def test_bad_large_and_dangerous_files_are_told_and_the_page_lives(fake, visit, tmp_path):
    """B6."""
    tab = visit(fake)
    files = {
        "words.png": b"these are words",
        "half.png": picture(1)[:200],
        "large.png": picture(1) + bytes(20 << 20),
        "bomb.png": bomb(12_000, 12_000),
        "long.jpg": b"\xff\xd8\xff\xe0\x00\x04\x00\x00\xff\xc0\x00\x0b\x08\x00\x10\x80\x00\x01\x01\x11\x00" + bytes(99),
    }
    expected = {
        "words.png": "Not an image that the server reads\nThis is neither JPEG nor PNG nor WebP.",
        "half.png": "This could not be read as an image\nThe image cannot be decoded.",
        "large.png": "Too large\nThe file has 20.0 MiB; the server takes up to 10.0 MiB for one image. Nothing was sent.",
        "bomb.png": "Too large\nThe image has 12 000 × 12 000 pixels; the server takes up to 50 million. Nothing was sent.",
        "long.jpg": "Too large\nThe image is 32 768 pixels long; the server takes up to 16 384. Nothing was sent.",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        sent = fake.asked["/v1/sweep"]
        tab.choose("#file", tmp_path / name)
        tab.until(f"{named(name)} && {TOLD}")
        assert tab.text("problem") == expected[name]
        assert (fake.asked["/v1/sweep"] == sent) == ("Nothing was sent" in expected[name])
    answered(tab)
    assert not tab.run(TOLD)


def test_drop_paste_and_keyboard(fake, visit, tmp_path):
    """B5: each way in, by real events."""
    tab = visit(fake)
    file = tmp_path / "dropped.png"
    file.write_bytes(picture(20))
    tab.drop("#drop", file)
    tab.until(MEASURED)
    assert tab.text("file-name") == "dropped.png"
    tab.allow("clipboardReadWrite", "clipboardSanitizedWrite")
    tab.call("Page.bringToFront")
    tab.run("navigator.clipboard.write([new ClipboardItem({'image/png': state.traffic[0].blob})])")
    tab.paste()
    tab.until(f"{named('pasted image')} && {MEASURED}")
    # From here on with keys alone, from the top of the page.
    tab.open(fake.address)
    tab.until(READY)
    reached = []
    while "Sample sample 2" not in reached:
        tab.press("Tab")
        reached.append(tab.run("document.activeElement.ariaLabel ?? document.activeElement.id"))
        assert len(reached) < 12, reached
    assert reached[:2] == ["Colours: automatic", "file"]
    tab.press("Enter")
    tab.until(MEASURED)
    while tab.run("document.activeElement.id") != "slider":
        tab.press("Tab")
        assert tab.run(SHOWS_FOCUS)
    tab.press("Home")
    tab.until(MEASURED)
    assert verdicts(tab)[0] == "stops here"
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    spoken = [(node["role"]["value"], node["name"]["value"]) for node in nodes if "name" in node and not node["ignored"]]
    controls = [name for role, name in spoken if role in ("button", "radio", "slider", "combobox", "spinbutton", "textbox")]
    assert len(controls) > 20 and all(controls), "every control has a name"


def test_maps_lie_on_the_part_that_the_model_saw(fake, visit):
    """B4 with a photograph that is cropped: one cell for each token, and they sum to 1."""
    tab = visit(fake)
    answered(tab)
    tab.click("[name=overlay][value=attention]")
    for exit, side in ((1, 7), (2, 10), (3, 14)):
        tab.click(f"[name=shown][value='{exit}']")
        shown = "[...document.querySelectorAll('#overlay .attention rect')].map(cell => Number(cell.dataset.value))"
        values = tab.until(f"(found => found.length == {side * side} && found)({shown})")
        assert sum(values) == pytest.approx(1)
    boxes = "['frame', 'overlay'].map(id => document.getElementById(id).getBoundingClientRect().toJSON())"
    frame, overlay = tab.run(boxes)
    assert overlay["width"] == pytest.approx(overlay["height"], abs=1)
    assert overlay["height"] == pytest.approx(0.9 * frame["height"], abs=1)
    assert overlay["x"] + overlay["width"] / 2 == pytest.approx(frame["x"] + frame["width"] / 2, abs=1)
    tab.click("[name=overlay][value=change]")
    tab.until("document.querySelector('#overlay .change rect') != null")
    tab.click("[name=shown][value='1']")
    tab.until("document.getElementById('overlay-words').innerText == 'Exit 1 has no exit before it to differ from.'")
    assert fake.asked["/v1/explain"] == 3, "each map is fetched once"


def test_names_are_text(fake, visit):
    """B11."""
    fake.classes = [HOSTILE] * len(fake.classes)
    fake.samples = [{**sample, "name": HOSTILE} for sample in fake.samples]
    tab = visit(fake)
    answered(tab)
    assert tab.text("name") == HOSTILE == tab.text("file-name")
    assert tab.run("document.querySelectorAll('#answer img, #answer script').length") == 0
    assert tab.run("document.documentElement.dataset.ran ?? 'never'") == "never"


# ---- The server's states


def test_a_busy_server_is_asked_again_after_the_seconds_it_names(fake, visit):
    """B8."""
    fake.refuse = [BUSY]
    tab = visit(fake)
    stop_the_clock(tab)
    tab.click("#samples button")
    assert tab.until(TOLD) == "The server is busy\nToo many images are waiting. Asking again in 1 second."
    assert fake.asked["/v1/sweep"] == 1
    tab.run(A_SECOND_LATER)
    tab.until(MEASURED)
    assert not tab.run(TOLD) and fake.asked["/v1/sweep"] == 2
    fake.refuse = [BUSY, BUSY]
    tab.click("#samples li:nth-child(2) button")
    tab.until(TOLD)
    tab.run(A_SECOND_LATER)
    tab.until("document.querySelector('#problem button') != null")
    assert tab.text("problem").startswith("The server is busy\nToo many images are waiting. It asks to wait 1 second.")
    assert fake.asked["/v1/sweep"] == 4
    tab.click("#problem button")
    tab.until(MEASURED)


def test_a_server_that_goes_and_comes_back_needs_no_reload(fake, visit):
    """B7; the answers stay, and an image that had none is sent again."""
    tab = visit(fake)
    answered(tab)
    name = tab.text("name")
    fake.draining = True
    tab.until("document.getElementById('state').innerText == 'stopping'")
    fake.stop()
    tab.until(OFFLINE)
    assert "without a reload" in tab.text("trouble") and tab.text("name") == name
    tab.click("#samples li:nth-child(4) button")
    assert "sent again as soon as it does" in tab.until(TOLD)
    fake.draining = False
    fake.start(fake.port)
    tab.until(f"{READY} && {MEASURED} && document.getElementById('trouble').hidden")
    assert tab.text("file-name") == "sample 4" and not tab.run(TOLD)


@pytest.mark.slow
def test_another_model_behind_the_same_address_is_noticed(visit):
    first = Fake()
    tab = visit(first)
    answered(tab)
    first.stop()
    second = Fake(exits=2, port=first.port, version="f00")
    try:
        tab.until("document.querySelectorAll('.exit').length == 2")
        tab.until(MEASURED)
        assert tab.text("cost").endswith("31 ms") and "(f00)" in tab.text("model")
    finally:
        second.stop()


@pytest.mark.slow
def test_a_token_is_asked_for_and_kept_in_memory_alone(fake, visit):
    """B12."""
    fake.token = "open sesame"
    tab = visit(fake, wait=LOCKED)
    assert tab.run("document.activeElement.id") == "token" and tab.text("state") == "token wanted"
    tab.type("wrong word")
    tab.press("Enter")
    tab.until("document.getElementById('door-words').innerText.startsWith('This token was not accepted.')")
    tab.type(fake.token)
    tab.press("Enter")
    tab.until(READY)
    answered(tab)
    assert tab.run("[localStorage.length, sessionStorage.length, document.cookie, token.value]") == [0, 0, "", ""]
    tab.open(fake.address)
    tab.until(LOCKED)


def test_live_numbers_and_sample_traffic(fake, visit):
    fake.counts.update({1: 71, 2: 20, 3: 9})
    tab = visit(fake, wait=f"{READY} && document.querySelectorAll('#mix-legend li').length == 3")
    legend = tab.run("[...document.querySelectorAll('#mix-legend li')].map(each => each.innerText)")
    assert [text.replace("\u202f", " ") for text in legend] == [
        "exit 1: 71 %, in batches of 6.2",
        "exit 2: 20 %, in batches of 2.9",
        "exit 3: 9 %, in batches of 1.0",
    ]
    assert tab.text("figures").split("\n")[:4] == ["images per second", "20", "latency p50 · p95 · p99", "18 · 61 · 96 ms"]
    tab.run("rate.value = 20; rate.dispatchEvent(new Event('change'))")
    tab.click("#play")
    tab.until("play.tally?.answered >= 4")
    tab.run("rate.value = 10; rate.dispatchEvent(new Event('change'))")
    tab.until("play.tally.answered >= 6 && play.tally.answered <= play.tally.sent")
    tab.run("Object.defineProperty(document, 'hidden', {value: true}); document.dispatchEvent(new Event('visibilitychange'))")
    assert tab.text("play-words") == "Stopped, because this tab was hidden."
    tab.until("play.open == 0")
    sent = fake.asked["/v1/predict"]
    tab.run("new Promise(done => setTimeout(done, 200))")
    assert fake.asked["/v1/predict"] == sent


@pytest.mark.slow
def test_old_numbers_are_dimmed(fake, visit):
    tab = visit(fake, wait=f"{READY} && document.querySelector('#figures dd') != null")
    fake.stop()
    tab.until("document.getElementById('numbers').classList.contains('stale')")
    assert re.fullmatch(r"last numbers \d+ s ago", tab.text("live-words"))
    waits = tab.run("connection.wait")
    tab.until(f"connection.wait > {waits}")
    fake.start(fake.port)
    tab.until(f"{READY} && !document.getElementById('numbers').classList.contains('stale')")


@pytest.mark.slow
def test_two_tabs_do_not_mix(fake, visit):
    """B14."""
    fake.late = 0.05
    cheap, dear = visit(fake), visit(fake)
    cheap.run("moveTo(0)")
    dear.run("moveTo(11)")
    for tab in (cheap, dear):
        tab.click("#samples button")
    for tab in (cheap, dear):
        tab.until(MEASURED)
    assert verdicts(cheap)[0] == "stops here" and verdicts(dear)[2] == "stops here"
    assert cheap.text("cost").startswith("0.47 GMACs, 13 %") and dear.text("cost").startswith("3.59 GMACs, the full cost")


@pytest.mark.slow
def test_a_late_answer_to_an_earlier_image_is_dropped(fake, visit):
    tab = visit(fake)
    expected = tab.run("""(async () => { const [first, second] = state.traffic;
        take(first.blob, 'first'); await take(second.blob, 'second');
        return (await post('/v1/sweep', second)).exits.map(exit => exit.confidence); })()""")
    assert tab.run("state.sweep.exits.map(exit => exit.confidence)") == expected
    tab.until(MEASURED)
    assert tab.text("file-name") == "second"


@pytest.mark.slow
def test_costs_that_nobody_knows(visit):
    fake = Fake(exits=2)
    info, curve, unknown = fake.info(), fake.curve(), {"gmacs": None, "cumulative_gmacs": None, "grid": None}
    fake.info = lambda: {**info, "exits": [exit | unknown for exit in info["exits"]]}
    fake.curve = lambda: {**curve, "points": [point | {"gmacs": None} for point in curve["points"]]}
    try:
        tab = visit(fake)
        answered(tab)
        assert "unknown cost" in tab.text("cost") and "NaN" not in tab.run("document.body.innerText")
    finally:
        fake.stop()


# ---- Looks


def test_no_width_scrolls_sideways_and_words_stand_out(fake, visit):
    """B13."""
    fake.classes = ["a class with a rather long name, of the kind that data sets of a thousand classes have"] * 8
    tab = visit(fake)
    answered(tab)
    tab.click("[name=overlay][value=attention]")
    tab.run("document.getElementById('curve-block').open = true; moveTo(4); say('Too large', 'x'.repeat(300))")
    for dark in (False, True):
        for width in (320, 360, 620, 800, 1400, 2400):
            tab.look(width, 900, dark=dark)
            tab.run("new Promise(requestAnimationFrame)")
            assert tab.run("document.documentElement.scrollWidth") <= width and tab.run(TOO_WIDE) == [], width
        assert (luminance(tab.run("getComputedStyle(document.body).backgroundColor")) < 0.1) == dark
        found = tab.run(WORDS)
        assert len(found) > 40
        for words, ink, paper, size in found:
            assert contrast(ink, paper) >= 4.5 and size >= 12, (words, ink, paper, size)


@pytest.mark.slow
def test_colours_can_be_chosen_and_motion_is_left_out(fake, visit):
    tab = visit(fake, still=False)
    paper = "getComputedStyle(document.body).backgroundColor"
    light = tab.run(paper)
    assert luminance(light) > 0.9
    tab.click("#theme")
    tab.click("#theme")
    assert luminance(tab.run(paper)) < 0.05 and tab.run("document.documentElement.dataset.theme") == "dark"
    moving = "getComputedStyle(document.getElementById('numbers')).transitionProperty"
    assert tab.run(moving) == "opacity"
    tab.look(1280, 900, still=True)
    assert tab.run(moving) == "none"
