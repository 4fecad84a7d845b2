"""Pages from blocks alone: everything that a guest's section can be made of."""

import pytest

from analysis.report.made_up import png
from analysis.report.outline import Outline
from dynavit.analysis.report import Facts, Figure, Figures, Notes, Sample, Samples, Section, Table, Text
from dynavit.analysis.report.page import render


def bars(values):
    def paint(figure):
        figure.add_subplot().bar(range(len(values)), values)

    return Figure(f"Bars {values}", "How to read it.", 1.5, paint)


BLOCKS = [
    Text("some <b>words</b>"),
    Facts([("name", "value")]),
    Facts([("command", "dynavit train")], "folded"),
    Table("A table", ["", "x"], [["row", "1"], ["other", "2"]], frozenset({(1, 1)}), ["a note"]),
    Table("A long table", ["", "x"], [["row", "1"]], summary="unfold me"),
    Figures([bars([1, 2]), bars([3, 4])], legend=[("a line", "ink", (5, 2))]),
    Samples([Sample(png(1), "30°", "30°", "90 %"), Sample(png(2), "30°", "60°")], "Two predictions."),
    Notes(["noted"]),
]


@pytest.fixture(scope="module")
def page():
    return render("A title & more", "today", [Section("Empty"), Section("Angles", BLOCKS)])


def test_every_block_is_shown(page):
    outline = Outline(page)
    assert outline.text["h1"] == ["A title & more"] and outline.text["h2"] == ["Angles"], "without the empty section"
    assert "some <b>words</b>" in outline.text["p"]
    assert outline.text["dt"] == ["name", "command"] and outline.text["code"] == ["dynavit train"]
    assert outline.text["summary"] == ["folded", "unfold me"]
    assert '<td class="marked">2</td>' in page and outline.text["td"] == ["1", "2", "1"]
    assert {"a note", "a line", "noted"} <= set(outline.text["li"])
    assert outline.text["figcaption"] == ["How to read it."] * 2


def test_the_page_forbids_scripts_and_everything_from_outside(page):
    metas = [attributes for tag, attributes in Outline(page).tags if tag == "meta"]
    (policy,) = [meta["content"] for meta in metas if meta.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(maxsplit=1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:" and "script-src" not in rules


def test_a_sample_without_a_confidence_has_no_empty_line(page):
    samples = page[page.index('<ul class="samples">') :]
    assert samples.count('<span class="small">90 %</span>') == samples.count("<span") == 1
    assert "<b>60°</b>, not 30°" in samples and samples.count("<li class=") == 1


def test_figures_of_one_page_share_no_ids(page):
    ids = [attributes["id"] for _, attributes in Outline(page).tags if "id" in attributes]
    assert len(ids) == len(set(ids)) > 2
