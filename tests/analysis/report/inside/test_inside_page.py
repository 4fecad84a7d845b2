"""The figures on a page: of runs, of comparisons, and of an analysis alone."""

import json
import re

import pytest

from analysis.report.inside.made_up_inside import make_inside, read, vit
from analysis.report.made_up import make_comparison, make_run
from dynavit.analysis.report import write_report
from dynavit.analysis.report.inside.draw_all import KINDS, draw_all
from dynavit.analysis.report.read import Inside, read_directory

FEW = ["magnitudes", "attention_distance", "positions", "directions", "attention_maps"]


def drawn(directory, without=FEW, **more):
    make_inside(directory, norms=["dtn"], blocks=vit(2, 2, 3), shown=1, without=without, **more)
    draw_all(directory / "analysis", created="2025-01-02T03:04:05", command="dynavit analyze <x>")
    return directory


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return drawn(tmp_path_factory.mktemp("page") / "both", without=["directions", "mean_variation"])


def titles(page):
    return re.findall(r"<h2[^>]*>([^<]*)</h2>", page)


def test_an_analysis_alone_has_a_page(alone):
    assert isinstance(read_directory(alone), Inside)
    page = write_report(alone).read_text()
    assert titles(page) == [
        "What was probed",
        "Token magnitudes",
        "Attention distance",
        "λ during training",
        "What each DTN became",
        "Positional weights",
        "Attention maps",
        "Exits",
    ]
    index = read(alone, "index")
    labels = [figure["label"] for section in index["sections"] for figure in section["figures"]]
    assert re.findall(r'role="img" aria-label="([^"]*)"', page) == labels
    assert "<h1>both</h1>" in page and "dynavit analyze &lt;x&gt;" in page
    assert page.count("<img ") == 12  # of the exits


def test_its_figures_follow_the_page_and_need_nothing_from_outside(alone):
    page = write_report(alone).read_text()
    without_images = re.sub(r"data:image/png;base64,[\w+/=]*", "", page)
    assert not re.search(r"https?:|//[a-z]|@import|<script|\bon\w+=|xmlns|xlink|DejaVu Sans'|#ffffff", without_images)
    svgs = re.findall(r'<svg viewBox="[^"]*" aria-hidden="true">.*?</svg>', page, flags=re.DOTALL)
    assert len(svgs) == 9 and not any(re.search(r"#[0-9a-f]{6}", re.sub('base64,[^"]*', "", svg)) for svg in svgs)
    assert all("var(--ink)" in svg for svg in svgs)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^)"]*)', page)) <= set(ids)


def test_images_keep_the_exact_size_of_their_maps(alone):
    """Hundredths of a point would be multiplied by the pixels of an image."""
    svg = (alone / "analysis/attention_maps-0.svg").read_text()
    matrices = re.findall(r'transform="(matrix[^"]*)"', svg)
    page = write_report(alone).read_text()
    assert matrices and all(matrix in page for matrix in matrices)


def test_a_run_shows_its_inside_after_its_own_sections_and_lambda_once(tmp_path):
    run = make_run(tmp_path / "run", norm="dtn", epochs=3, layers=1, heads=2)
    before = write_report(run).read_text()
    drawn(run, exits=0)
    page = write_report(run).read_text()
    inside = ["What was probed", "Distance of the mean to the tokens", "λ during training", "What each DTN became"]
    assert titles(page) == [*titles(before), *inside]
    assert before.count("λ of the mean over training") == page.count("λ of the mean over training") == 1
    assert "λ of the mean per layer and head" in page, "the end of training, with numbers"


def test_images_of_exits_are_shown_once(tmp_path):
    run = make_run(tmp_path / "run", exits=3)
    assert write_report(run).read_text().count("Some images that left at exit 1") == 1
    drawn(run, without=[kind for kind in KINDS if kind != "exits"])
    assert write_report(run).read_text().count("Some images that left at exit 1") == 1


def test_a_comparison_shows_its_inside_last(tmp_path):
    comparison = make_comparison(tmp_path / "c", accuracies={"ln": [0.9], "dtn": [0.95]})
    drawn(comparison, without=[*FEW, "exits", "lambda"])
    inside = ["What was probed", "Distance of the mean to the tokens", "What each DTN became"]
    assert titles(write_report(comparison).read_text())[-3:] == inside


def test_every_page_says_how_its_analysis_was_made(tmp_path):
    run = make_run(tmp_path / "run")
    comparison = make_comparison(tmp_path / "c", accuracies={"ln": [0.9]})
    for directory in (run, comparison, tmp_path / "alone"):
        drawn(directory, without=[kind for kind in KINDS if kind != "dtn_nature"])
        page = write_report(directory).read_text()
        probed = re.search(r"What was probed</h2>\s*<dl>(.*?)</dl>", page, flags=re.DOTALL)[1]
        assert re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", probed) == [
            ("made", "2025-01-02 03:04:05"),
            ("command", "<code>dynavit analyze &lt;x&gt;</code>"),
            ("images", "64 of the test split of digits"),
            ("run", "dtn-seed0: vit_tiny in runs/dtn-seed0, checkpoint last, step 90, weights ema"),
        ]


def test_long_tables_beside_figures_are_folded_away(tmp_path):
    make_inside(tmp_path, norms=["dtn"], blocks=vit(7, 1, 2), shown=1, without=[*FEW, "lambda", "exits"])
    draw_all(tmp_path / "analysis")
    page = write_report(tmp_path).read_text()
    assert re.findall("<summary>([^<]*)", page) == ["Variation coefficient of the mean"]


def test_a_figure_that_is_not_there_is_left_out(tmp_path):
    drawn(tmp_path, without=[*FEW, "lambda", "exits"])
    (tmp_path / "analysis/mean_variation-0.svg").unlink()
    assert "<figure>" not in write_report(tmp_path).read_text()


@pytest.mark.parametrize(
    "bad",
    [
        "<script>alert(1)</script>",
        '<g onload="alert(1)"/>',
        '<image xlink:href="https://elsewhere.example/a.png"/>',
        "<foreignObject/>",
    ],
)
def test_a_figure_that_we_did_not_draw_is_refused(tmp_path, bad):
    (tmp_path / "analysis").mkdir()
    figure = {"name": "a", "label": "a", "caption": "a", "group": "", "svg": "a.svg", "png": "a.png", "json": "a.json"}
    section = {"kind": "a", "title": "a", "text": "a", "figures": [figure], "tables": [], "samples": []}
    (tmp_path / "analysis/index.json").write_text(json.dumps({"sections": [section]}))
    svg = '<svg xmlns="a" viewBox="0 0 1 1">{}</svg>'
    (tmp_path / "analysis/a.svg").write_text(svg.format("<g/>"))
    assert '<svg viewBox="0 0 1 1"' in write_report(tmp_path).read_text()
    (tmp_path / "analysis/a.svg").write_text(svg.format(bad))
    with pytest.raises(ValueError, match=r"analysis/a\.svg: dynavit did not draw this figure"):
        write_report(tmp_path)
