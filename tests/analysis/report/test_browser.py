"""The report in a real browser, at two widths, light and dark.

A wrapper page holds the reports in frames of the wanted widths (a headless window cannot be narrow), measures them and writes
what it finds into itself; `--dump-dom` hands that over.
"""

import html
import json
import re
import shutil
import subprocess

import pytest

from analysis.report.inside.made_up_inside import make_inside, read, vit
from analysis.report.made_up import ACCURACIES, make_comparison, make_run
from colours import contrast, luminance
from dynavit.analysis.report import write_report
from dynavit.analysis.report.inside.draw_all import KINDS
from dynavit.analysis.report.page import render
from dynavit.analysis.report.sections import classification, early_exit

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs a browser: install chromium")

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-extensions"),
    *("--enable-logging=stderr", "--virtual-time-budget=4000", "--dump-dom"),
]
WIDTHS = (1280, 400)
FIGURES = {"comparison": 10, "run": 9, "inside": 13}  # on each page
SAMPLES = {"comparison": 12, "run": 24, "inside": 20}
# What a page must not do, should somebody's words ever reach it as elements.
RUN = "document.documentElement.dataset.ran = 1"
HOSTILE = f'<script>{RUN}</script><svg onload="{RUN}"></svg><img src="data:," onerror="{RUN}"><style>@import "a.css"</style>'
HOSTILE_DEEDS = 4
MEASURE = """
function measure(frame) {
  const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
  const box = element => { const b = element.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
  const figures = [...page.querySelectorAll("figure svg")].map(svg => ({
    box: box(svg),
    words: [...svg.querySelectorAll("text")].map(text => [text.textContent, ...box(text)]),
    maps: [...svg.querySelectorAll("image")].map(box),
    paint: [...svg.querySelectorAll("path[style*=var]")].map(path => view.getComputedStyle(path))
      .map(style => style.stroke == "none" ? style.fill : style.stroke),
  }));
  const colours = ["body", "p", "dt", "dd", "thead th", "td", "figcaption", ".small", "svg text"].flatMap(name => {
    const element = page.querySelector(name);
    if (!element) return [];
    const style = view.getComputedStyle(element);
    return [[name, name == "svg text" ? style.fill : style.color, parseFloat(style.fontSize)]];
  });
  return {
    name: frame.name, width: view.innerWidth, scroll: root.scrollWidth, height: root.scrollHeight,
    dark: view.matchMedia("(prefers-color-scheme: dark)").matches,
    paper: view.getComputedStyle(page.body).backgroundColor,
    tables: [...page.querySelectorAll("table")].map(table => box(table.parentElement)),
    images: [...page.querySelectorAll("img")].map(image => image.naturalWidth), ran: root.dataset.ran,
    figures, colours,
  };
}
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(measure);
  document.body.textContent = JSON.stringify(found);
});
"""


def pages(directory):
    many = ACCURACIES | {"a_rather_long_name": [0.95, 0.96, 0.97]}
    comparison = make_comparison(directory / "comparison", accuracies=many, unfinished=frozenset({"bn-seed2"}))
    run = make_run(directory / "run", norm="dtn", layers=3, heads=12, classes=["aeroplane", "lesser panda", "ship"], exits=3)
    inside = make_inside(directory / "inside", norms=["dtn"], blocks=vit(3, 12, 14), shown=1, exits=5)
    sections = [section(read(inside, kind)) for kind, section in KINDS.items()]
    return {
        "comparison": write_report(comparison, of_cascades).read_text(),
        "run": write_report(run, of_cascades).read_text(),
        "inside": render("inside", "", sections),
        "hostile": render("hostile", "", []).replace("</main>", f"{HOSTILE}</main>"),
    }


def of_cascades(run):
    return [*early_exit.sections(run), *classification.sections(run)]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Every page at each width in each scheme, as the browser shows it."""
    directory = tmp_path_factory.mktemp("browser")
    frames = [
        f'<iframe name="{name} {width}" style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(page)}"></iframe>'
        for name, page in pages(directory).items()
        for width in WIDTHS
    ]
    wrapper = directory / "wrapper.html"
    wrapper.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{"".join(frames)}<script>{MEASURE}</script></body>')
    return {scheme: look(wrapper, scheme) for scheme in ("light", "dark")}


def look(wrapper, scheme):
    preferred = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    command = [BROWSER, *FLAGS, preferred, f"--user-data-dir={wrapper.parent / scheme}", wrapper.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert len(complaints) == len(WIDTHS) * HOSTILE_DEEDS and all("Content Security Policy" in line for line in complaints), (
        "the console is silent but for the hostile page"
    )
    found = re.search(r"<body[^>]*>(.*)</body>", done.stdout, flags=re.DOTALL)
    return json.loads(html.unescape(found[1]))


@pytest.fixture
def frames(measured):
    found = [{**frame, "scheme": scheme} for scheme, found in measured.items() for frame in found]
    return [frame for frame in found if "hostile" not in frame["name"]]


def test_no_script_runs_on_a_page(measured):
    hostile = [frame for frame in measured["light"] if "hostile" in frame["name"]]
    assert len(hostile) == len(WIDTHS) and not any(frame.get("ran") for frame in hostile)


def test_the_frames_are_what_they_should_be(frames):
    names = [f"{name} {width}" for name in FIGURES for width in WIDTHS]
    assert [frame["name"] for frame in frames] == [*names, *names]
    for frame in frames:
        assert frame["dark"] == (frame["scheme"] == "dark") == (luminance(frame["paper"]) < 0.1)
        assert len(frame["figures"]) == FIGURES[frame["name"].split()[0]]
        assert frame["height"] > 2000


def test_nothing_scrolls_sideways(frames):
    for frame in frames:
        assert frame["scroll"] <= frame["width"], frame["name"]
        for left, _, right, _ in frame["tables"]:
            assert left >= 0 and right <= frame["width"], frame["name"]


def test_figures_are_there_and_nothing_is_cut_off(frames):
    for frame in frames:
        for figure in frame["figures"]:
            left, top, right, bottom = figure["box"]
            assert right - left > 250 and bottom - top > 80, frame["name"]
            for word, *box in figure["words"]:
                assert box[0] > left - 2 and box[1] > top - 2 and box[2] < right + 2 and box[3] < bottom + 2, (
                    frame["name"],
                    word,
                )
            for box in figure["maps"]:
                assert box[0] > left - 1 and box[1] > top - 1 and box[2] < right + 1 and box[3] < bottom + 1, frame["name"]
                assert box[2] - box[0] > 16, frame["name"]
            assert figure["paint"] or figure["maps"], frame["name"]
            assert all(colour.startswith("rgb") for colour in figure["paint"]), frame["name"]


def test_images_are_decoded(frames):
    for frame in frames:
        assert frame["images"] == [8] * SAMPLES[frame["name"].split()[0]]


def test_text_stands_out_and_is_large_enough(frames):
    for frame in frames:
        assert len(frame["colours"]) >= 7
        for name, colour, size in frame["colours"]:
            assert contrast(colour, frame["paper"]) >= 4.5, (frame["name"], name)
            assert name == "svg text" or size >= 12, (frame["name"], name)


def test_words_in_figures_are_large_enough(frames):
    for frame in frames:
        for figure in frame["figures"]:
            for word, left, top, right, bottom in figure["words"]:
                assert max(right - left, bottom - top) > 8, (frame["name"], word)  # a lone letter is high, a turned word wide
