"""The stored figures of an analysis on a page."""

import json
import re

import pytest

from analysis.report.inside.made_up_inside import make_inside, read, store_index, vit
from analysis.report.made_up import make_comparison, make_run
from dynavit.analysis.report import write_report
from dynavit.analysis.report.figures.canvas import for_page
from dynavit.analysis.report.figures.stored_svg import checked_svg
from dynavit.analysis.report.inside.draw_all import draw_all
from dynavit.analysis.report.read import Inside, read_directory
from dynavit.analysis.report.sections.comparison import comparison_sections
from dynavit.analysis.report.sections.inside import inside_sections
from dynavit.analysis.report.sections.run import run_sections


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    directory = tmp_path_factory.mktemp("page") / "both"
    without = ["directions", "mean_variation"]
    make_inside(directory, norms=["dtn"], blocks=vit(2, 2, 3), shown=1, without=without)
    draw_all(directory, created="2025-01-02T03:04:05", command="dynavit analyze <x>")
    return directory


@pytest.fixture(scope="module")
def page(alone):
    return write_report(alone).read_text()


def titles(page):
    return re.findall(r"<h2[^>]*>([^<]*)</h2>", page)


def test_an_analysis_alone_has_a_page(alone, page):
    assert isinstance(read_directory(alone), Inside)
    assert titles(page) == [
        "What was probed",
        "Token magnitudes",
        "Attention distance",
        "λ during training",
        "What each DTN became",
        "Positional weights",
        "Attention maps",
        "Exits",
        "Anchors and things",
        "Padding",
    ]
    index = read(alone, "index")
    labels = [figure["label"] for section in index["sections"] for figure in section["figures"]]
    assert re.findall(r'role="img" aria-label="([^"]*)"', page) == labels
    assert "<h1>both</h1>" in page and "dynavit analyze &lt;x&gt;" in page
    assert page.count("<img ") == 12  # of the exits


def test_its_figures_follow_the_page_and_need_nothing_from_outside(page):
    without_images = re.sub(r"data:image/png;base64,[\w+/=]*", "", page)
    assert not re.search(r"https?:|//[a-z]|@import|<script|\bon\w+=|xmlns|xlink|DejaVu Sans'|#ffffff", without_images)
    svgs = re.findall(r'<svg viewBox="[^"]*" aria-hidden="true">.*?</svg>', page, flags=re.DOTALL)
    assert len(svgs) == 11 and not any(re.search(r"#[0-9a-f]{6}", re.sub('base64,[^"]*', "", svg)) for svg in svgs)
    assert all("var(--ink)" in svg for svg in svgs)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^)"]*)', page)) <= set(ids)


def test_images_keep_the_exact_size_of_their_maps(alone, page):
    """Hundredths of a point would be multiplied by the pixels of an image."""
    svg = (alone / "analysis/attention_maps-0.svg").read_text()
    matrices = re.findall(r'transform="(matrix[^"]*)"', svg)
    assert matrices and all(matrix in page for matrix in matrices)


def test_figures_of_a_group_stand_side_by_side(alone):
    """Each group is a block of its own: the maps of an image, the lines, the two figures of a run's exits."""
    found = {section.title: section for section in inside_sections(read_directory(alone))}

    def groups(title):
        return [len(block.figures) for block in found[title].blocks if block.kind == "figures"]

    assert (groups("Token magnitudes"), groups("λ during training"), groups("Exits")) == ([1, 1], [2], [2])


def test_every_page_says_how_its_analysis_was_made(tmp_path, alone):
    run, comparison = make_run(tmp_path / "run"), make_comparison(tmp_path / "c", accuracies={"ln": [0.9]})
    for directory in (run, comparison):
        (directory / "analysis").mkdir()
        (directory / "analysis/index.json").write_bytes((alone / "analysis/index.json").read_bytes())
    pages = [
        run_sections(read_directory(run)),
        comparison_sections(read_directory(comparison)),
        inside_sections(read_directory(alone)),
    ]
    for sections in pages:
        (probed,) = [section for section in sections if section.title == "What was probed"]
        assert probed.blocks[0].rows == [
            ("made", "2025-01-02 03:04:05"),
            ("command", "dynavit analyze <x>"),
            ("images", "64 of the test split of digits"),
            ("run", "dtn-seed0: vit_tiny in runs/dtn-seed0, checkpoint last, step 90, weights ema"),
        ]


@pytest.mark.parametrize(("rows", "summary"), [(12, ""), (13, "long")])
def test_long_tables_beside_figures_are_folded_away(tmp_path, rows, summary):
    store_index(tmp_path, ["mean_variation"])
    index = read(tmp_path, "index")
    table = {"label": "long", "header": ["", "x"], "rows": [["layer", "1"]] * rows, "notes": []}
    index["sections"][0]["tables"] = [table]
    (tmp_path / "analysis/index.json").write_text(json.dumps(index))
    *_, shown = inside_sections(read_directory(tmp_path))[-1].blocks
    assert shown.summary == summary


def test_a_figure_that_is_not_there_is_left_out(tmp_path):
    store_index(tmp_path, ["mean_variation"])
    (tmp_path / "analysis/mean_variation-0.svg").unlink()
    assert "<figure>" not in write_report(tmp_path).read_text()


def test_every_figure_of_ours_is_shown_unchanged(alone):
    """But for line ends inside values, which XML reads as blanks."""
    for figure in read_directory(alone).figures.values():
        assert for_page(checked_svg(figure)).split() == for_page(figure).split()


# The first five run a script or fetch something although no element and no attribute looks like it at first sight.
@pytest.mark.parametrize(
    "bad",
    [
        "<svg/onload=alert(1) viewBox='0 0 1 1'></svg>",
        '<svg viewBox="0 0 1 1"><image x=">" onerror="alert(1)"/></svg>',
        '<svg viewBox="0 0 1 1"><g id="1"onload="alert(1)"/></svg>',
        "<svg viewBox='0 0 1 1'><image href='https://elsewhere.example/a.png'/></svg>",
        '<svg viewBox="0 0 1 1"><style>@import "https://elsewhere.example/a.css"</style></svg>',
        '<svg viewBox="0 0 1 1"><script>alert(1)</script></svg>',
    ],
)
def test_a_figure_that_we_did_not_draw_is_refused(tmp_path, bad):
    store_index(tmp_path, ["a"])
    assert '<svg viewBox="0 0 1 1"' in write_report(tmp_path).read_text()
    (tmp_path / "analysis/a-0.svg").write_text(bad)
    with pytest.raises(ValueError, match=r"analysis/a-0\.svg: dynavit did not draw this figure \(.+\); run `dynavit analyze`"):
        write_report(tmp_path)
