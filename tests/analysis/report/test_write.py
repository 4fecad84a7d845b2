"""Pages from directories."""

import json
import re

import pytest

from analysis.report.made_up import ANGLE, HITS, make_comparison, make_run
from analysis.report.outline import Outline
from dynavit.analysis.report import Notes, Section, Text, write_report
from dynavit.analysis.report.sections import classification, early_exit


def of_cascades(run):
    """As the task of early exit adds its sections."""
    return [*early_exit.sections(run), *classification.sections(run)]


@pytest.fixture(scope="module")
def comparison_page(tmp_path_factory):
    directory = make_comparison(tmp_path_factory.mktemp("report") / "c", unfinished=frozenset({"bn-seed2"}))
    path = write_report(directory, of_cascades)
    assert path == directory / "report.html"
    return path.read_text()


@pytest.fixture(scope="module")
def run_page(tmp_path_factory):
    notes = ("fell back to eager", "fell back to eager")
    directory = make_run(tmp_path_factory.mktemp("report") / "r", notes=notes, exits=2)
    return write_report(directory, of_cascades).read_text()


@pytest.fixture(scope="module")
def angle_page(tmp_path_factory):
    """A guest's task whose main metric is smaller for better models."""
    angles = {"ln": [12.0, 13.0, 11.0], "rms": [10.0, 10.0, 8.5]}
    directory = make_comparison(tmp_path_factory.mktemp("report") / "a", angles, metrics=[ANGLE, HITS])
    return write_report(directory, lambda run: [Section("Angles", [Text(f"of {run.name}")])]).read_text()


def test_a_comparison_has_every_section(comparison_page):
    outline = Outline(comparison_page)
    assert outline.text["h1"] == ["Norms on digits"]
    assert outline.text["h2"] == [
        "What was run",
        "Results",
        "Training",
        "Cost",
        "Mistakes and samples",
        "λ per layer and head",
        "Notes",
    ]
    # results, differences; top-1 and loss; cost; confusion; λ of mean and variance, at the end and over training
    assert len(outline.all("figure")) == 2 + 2 + 1 + 1 + 4


def test_a_comparison_says_what_was_run_and_what_is_missing(comparison_page):
    text = Outline(comparison_page).text
    for fact in (
        "ln, bn, in, dtn",
        "0, 1, 2",
        "Some CPU (avx2), 2 cores, 1 thread, torch 2.13.0",
        "digits",
        "vit_tiny_star",
        "8",
    ):
        assert fact in text["dd"]
    assert "dynavit compare --config quickstart.yaml --out runs/quickstart" in text["code"]
    assert "2 of 3" in text["td"]
    assert any(note.startswith("bn: 2 of 3 seeds have finished") for note in text["li"])
    assert any(note.startswith("skipped 1 broken image: cat/17.png (ln-seed1, bn-seed1") for note in text["li"])
    assert "norm" not in text["dt"][4:], "what is varied is no shared option"


def test_the_best_mean_alone_is_bold(comparison_page, angle_page):
    assert re.findall(r'<td class="marked">([^<]*)', comparison_page) == ["97.31 ± 0.25"]
    assert re.findall(r'<td class="marked">([^<]*)', angle_page) == ["9.5 ± 0.5"]


def test_the_mistakes_are_those_of_a_named_run(comparison_page):
    captions = " ".join(Outline(comparison_page).text["figcaption"])
    assert "dtn-seed0 on the test split: rows are the true classes" in captions


def test_a_run_has_its_sections(run_page):
    outline = Outline(run_page)
    assert outline.text["h2"] == [
        "What was run",
        "Results",
        "Training",
        "Early exit",
        "Mistakes and samples",
        "Notes",
    ]
    assert {"97.00", "99.80", "0.1100", "1.30", "360", "5,120"} <= set(outline.text["td"])
    assert "fell back to eager" in outline.text["li"]
    assert len(outline.all("img")) == 12 + 2 * 4
    assert len([item for item in outline.all("li") if item.get("class") == "wrong"]) == 2 + 1


def test_a_task_that_the_package_does_not_know(angle_page):
    text = Outline(angle_page).text
    assert text["h2"] == ["What was run", "Results", "Training", "Cost", "Angles", "Notes"]
    assert "of rms-seed0" in text["p"], "the first seed of the setting with the smallest error"
    assert "rotation" in text["dd"] and "angle error, degrees" in text["th"]
    assert {"validation angle error, degrees", "angle error on the test split, degrees"} <= set(text["text"])
    assert not {"top-1, %", "validation top-1, %"} & {*text["th"], *text["text"]}


def test_a_task_whose_plugin_is_missing(tmp_path):
    """The page is whole without it; whoever calls says so in a section."""
    directory = make_run(tmp_path / "run", metrics=[ANGLE], top1=10.0)
    missing = Section("rotation", [Notes(["The task rotation is not loaded; name its file with --plugin."])])
    text = Outline(write_report(directory, lambda run: [missing]).read_text()).text
    assert text["h2"] == ["What was run", "Results", "Training", "rotation"]
    assert "10.0" in text["td"] and "The task rotation is not loaded; name its file with --plugin." in text["li"]


@pytest.mark.parametrize("page", ["comparison_page", "run_page", "angle_page"])
def test_a_page_is_self_contained_and_needs_no_script(page, request):
    page = request.getfixturevalue(page)
    outline = Outline(page)
    without_images = re.sub(r"data:image/png;base64,[\w+/=]*", "", page)
    assert not re.search(r"https?:|//[a-z]|@import|@font-face|<script|\bon\w+=", without_images)
    for _, attributes in outline.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("data:", "#"))


@pytest.mark.parametrize("page", ["comparison_page", "run_page", "angle_page"])
def test_a_page_can_be_heard(page, request):
    outline = Outline(request.getfixturevalue(page))
    assert outline.all("html")[0]["lang"] == "en"
    assert len(outline.all("h1")) == 1
    assert all(attributes.get("scope") in ("col", "row") for attributes in outline.all("th"))
    assert all(attributes.get("alt") for attributes in outline.all("img"))
    pictures = [attributes for attributes in outline.all("div") if attributes.get("role") == "img"]
    assert len(pictures) == len(outline.all("figure")) == len(outline.text["figcaption"])
    assert all(attributes["aria-label"] for attributes in pictures)
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_sections_of_a_comparison_are_asked_of_its_example_with_its_analysis(tmp_path):
    """Pictures that the comparison's own analysis shows are not to be shown again."""
    directory = make_comparison(tmp_path / "c", {"ln": [0.96], "rms": [0.97]})
    (directory / "analysis").mkdir()
    (directory / "analysis/index.json").write_text(json.dumps({"sections": [], "command": "dynavit analyze"}))
    asked = []
    write_report(directory, lambda run: asked.append((run.name, run.inside.index["command"])) or [])
    assert asked == [("rms-seed0", "dynavit analyze")]


def test_words_from_files_are_no_markup(tmp_path):
    bad = "<script>alert(1)</script>"
    directory = make_run(tmp_path / "r", notes=(bad,), classes=[bad, "b", "c"])
    found = json.loads((directory / "eval/test.json").read_text())
    found["samples_shown"][0]["image"] = "https://elsewhere.example/a.png"
    (directory / "eval/test.json").write_text(json.dumps(found))
    page = write_report(directory, classification.sections).read_text()
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "elsewhere" not in page


def test_a_run_that_has_only_begun_has_a_page(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    text = Outline(write_report(tmp_path, of_cascades).read_text()).text
    assert text["h2"] == ["What was run", "Results"]
    assert text["p"] == ["This run has not been evaluated yet."]


def test_a_comparison_that_has_only_begun_has_a_page(tmp_path):
    entry = {"name": "ln", "values": {"norm": "ln"}, "runs": ["ln-seed0"]}
    (tmp_path / "comparison.json").write_text(
        json.dumps({"varied": ["norm"], "settings": [entry], "failures": {"ln-seed0": "no memory"}})
    )
    text = Outline(write_report(tmp_path, of_cascades).read_text()).text
    assert "ln-seed0 failed: no memory" in text["li"]
    assert "No run has finished yet." in text["li"]
    assert "ln: 0 of 1 seeds have finished; the others are left out." in text["li"]


def test_the_same_files_give_the_same_page(tmp_path):
    directory = make_run(tmp_path / "r", epochs=3)
    assert write_report(directory).read_bytes() == write_report(directory).read_bytes()
    assert sorted(file.name for file in directory.iterdir()) == [
        "config.yaml",
        "env.json",
        "eval",
        "metrics.jsonl",
        "report.html",
    ]
