import json
import re
from html.parser import HTMLParser

import pytest

from analysis.report.made_up import make_comparison, make_run
from dynavit.analysis.report import write_report


class Outline(HTMLParser):
    """Tags with their attributes, and text by the kind of element it stands in."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.open = [], {}, []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} closes something else"

    def handle_data(self, data):
        if data.strip():
            self.text.setdefault(self.open[-1], []).append(data.strip())

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def comparison_page(tmp_path_factory):
    directory = make_comparison(tmp_path_factory.mktemp("report") / "c", unfinished=frozenset({"bn-seed2"}))
    path = write_report(directory)
    assert path == directory / "report.html"
    return path.read_text()


@pytest.fixture(scope="module")
def run_page(tmp_path_factory):
    directory = make_run(
        tmp_path_factory.mktemp("report") / "r", norm="dtn", notes=("fell back to eager", "fell back to eager")
    )
    return write_report(directory).read_text()


def test_a_comparison_has_every_section(comparison_page):
    outline = Outline(comparison_page)
    assert outline.open == []
    assert outline.text["h1"] == ["Norms on digits"]
    assert outline.text["h2"] == [
        "What was run",
        "Results",
        "Training",
        "Cost",
        "λ per layer and head",
        "Mistakes and samples",
        "Notes",
    ]
    # accuracy, differences; accuracy and loss; cost; λ of mean and variance, at the end and over training; confusion
    assert len(outline.all("figure")) == 2 + 2 + 1 + 4 + 1


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


def test_the_highest_mean_alone_is_bold(comparison_page):
    assert re.findall(r'<td class="marked">([^<]*)', comparison_page) == ["97.31 ± 0.25"]


def test_the_mistakes_are_those_of_a_named_run(comparison_page):
    captions = " ".join(Outline(comparison_page).text["figcaption"])
    assert "dtn-seed0 on the test split: rows are the true classes" in captions


def test_a_run_has_its_sections(run_page):
    outline = Outline(run_page)
    assert outline.open == []
    assert outline.text["h2"] == [
        "What was run",
        "Results",
        "Training",
        "λ per layer and head",
        "Mistakes and samples",
        "Notes",
    ]
    assert {"97.00", "99.80", "0.1100", "1.30", "360", "5,120"} <= set(outline.text["td"])
    assert "fell back to eager" in outline.text["li"]
    assert len(outline.all("img")) == 12
    assert len([item for item in outline.all("li") if item.get("class") == "wrong"]) == 2


@pytest.mark.parametrize("page", ["comparison_page", "run_page"])
def test_a_page_is_self_contained_and_needs_no_script(page, request):
    page = request.getfixturevalue(page)
    outline = Outline(page)
    without_images = re.sub(r"data:image/png;base64,[\w+/=]*", "", page)
    assert not re.search(r"https?:|//[a-z]|@import|@font-face|<script|\bon\w+=", without_images)
    for _, attributes in outline.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("data:", "#"))


@pytest.mark.parametrize("page", ["comparison_page", "run_page"])
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


def test_words_from_files_are_no_markup(tmp_path):
    bad = "<script>alert(1)</script>"
    directory = make_run(tmp_path / "r", notes=(bad,), classes=[bad, "b", "c"])
    found = json.loads((directory / "eval/test.json").read_text())
    found["samples_shown"][0]["image"] = "https://elsewhere.example/a.png"
    (directory / "eval/test.json").write_text(json.dumps(found))
    page = write_report(directory).read_text()
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "elsewhere" not in page


def test_many_classes_give_a_table_of_mistakes(tmp_path):
    page = write_report(make_run(tmp_path / "r", classes=[f"class {i}" for i in range(100)])).read_text()
    text = Outline(page).text
    assert "taken for" in text["th"] and "class 4" in text["td"]
    assert not any("rows are the true classes" in caption for caption in text["figcaption"])


def test_a_run_that_has_only_begun_has_a_page(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    text = Outline(write_report(tmp_path).read_text()).text
    assert text["h2"] == ["What was run", "Results"]
    assert text["p"] == ["This run has not been evaluated yet."]


def test_a_comparison_that_has_only_begun_has_a_page(tmp_path):
    entry = {"name": "ln", "values": {"norm": "ln"}, "runs": ["ln-seed0"]}
    (tmp_path / "comparison.json").write_text(
        json.dumps({"varied": ["norm"], "settings": [entry], "failures": {"ln-seed0": "no memory"}})
    )
    text = Outline(write_report(tmp_path).read_text()).text
    assert "ln-seed0 failed: no memory" in text["li"]
    assert "No run has finished yet." in text["li"]
    assert "ln: 0 of 1 seeds have finished; the others are left out." in text["li"]


def test_captions_of_one_seed_speak_of_one_seed(tmp_path):
    page = write_report(make_comparison(tmp_path / "c", accuracies={"ln": [0.96], "rms": [0.97]})).read_text()
    captions = " ".join(Outline(page).text["figcaption"])
    assert "Each dot is a single seed." in captions and "Each line is a single seed." in captions
    assert "standard error" not in captions and "95 %" not in captions and "bands" not in captions


def test_the_same_files_give_the_same_page(tmp_path):
    directory = make_run(tmp_path / "r", norm="dtn", epochs=3, layers=1, heads=2)
    assert write_report(directory).read_bytes() == write_report(directory).read_bytes()
    assert sorted(file.name for file in directory.iterdir()) == [
        "config.yaml",
        "env.json",
        "eval",
        "metrics.jsonl",
        "report.html",
    ]
