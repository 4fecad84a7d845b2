import base64
import io
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from analysis.report.inside.made_up_inside import make_inside, pyramid, read, source, vit, weights, write
from analysis.report.outline import blocks, captions
from dynavit.analysis.report import Table
from dynavit.analysis.report.figures.sheet import COLOURS
from dynavit.analysis.report.inside.draw_all import KINDS, draw_all
from dynavit.analysis.report.inside.runs import run_name

SVG = "{http://www.w3.org/2000/svg}"
REST = [kind for kind in KINDS if kind not in ("magnitudes", "attention_distance", "positions")]
LINK = "{http://www.w3.org/1999/xlink}href"


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    """Two runs, every kind."""
    directory = make_inside(tmp_path_factory.mktemp("figures"), norms=["ln", "dtn"], blocks=vit(2, 3, 4), shown=1)
    draw_all(directory, created="2025-01-02T03:04:05", command="dynavit analyze a b")
    return directory


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """A pyramid: heads and grids change from layer to layer."""
    directory = make_inside(tmp_path_factory.mktemp("figures"), norms=["dtn"], blocks=pyramid(), shown=1, without=REST)
    draw_all(directory)
    return directory


def drawing(directory, name):
    return ET.fromstring((directory / "analysis" / f"{name}.svg").read_text())


def words(directory, name):
    return [element.text for element in drawing(directory, name).iter(f"{SVG}text")]


def pixels(directory, name):
    """(rows, columns, 3) of every image in a figure, in the order of the file."""
    addresses = [element.get(LINK) for element in drawing(directory, name).iter(f"{SVG}image")]
    assert all(address.startswith("data:image/png;base64,") for address in addresses)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(a.partition(",")[2]))).convert("RGB")) for a in addresses]


def figures(directory, kind):
    sections = [section for section in read(directory, "index")["sections"] if section["kind"] == kind]
    return [figure["name"] for section in sections for figure in section["figures"]]


def test_the_index_names_what_was_drawn_and_from_what(inside):
    index = read(inside, "index")
    assert {name: index[name] for name in index if name != "sections"} == {
        "created": "2025-01-02T03:04:05",
        "command": "dynavit analyze a b",
        "images": 64,
        "data": "digits",
        "split": "test",
        "runs": ["ln-seed0", "dtn-seed0"],
        "sources": {f"{norm}-seed0": source(norm) for norm in ("ln", "dtn")},
    }
    assert [section["kind"] for section in index["sections"]] == list(KINDS)
    for section in index["sections"]:
        assert section["title"] and section["text"].endswith(".")
        for number, figure in enumerate(section["figures"]):
            name = f"{section['kind']}-{number}"
            files = {"svg": f"{name}.svg", "png": f"{name}.png", "json": f"{section['kind']}.json"}
            assert figure.items() >= {"name": name, **files}.items()
            assert figure["label"] and figure["caption"].endswith(".")
            assert all((inside / "analysis" / file).is_file() for file in files.values())


def test_there_is_a_figure_for_each_run_that_has_the_numbers(inside):
    counts = {kind: len(figures(inside, kind)) for kind in KINDS}
    assert counts == {
        "magnitudes": 2 + 1,
        "attention_distance": 2,
        "mean_variation": 1,
        "lambda": 2,
        "dtn_nature": 0,
        "positions": 1,
        "directions": 2,
        "attention_maps": 2,
        "exits": 2,
        "anchors": 2,
        "padding": 2,
    }


def test_every_figure_stands_alone_as_svg_and_png(inside):
    for file in (inside / "analysis").glob("*.svg"):
        text = file.read_text()
        root = ET.fromstring(text)
        assert root[0].tag == f"{SVG}rect" and "#ffffff" in root[0].get("style")
        assert "var(--" not in text and "sans-serif" in text
        assert not re.search(r"https?://(?!www\.w3\.org/(2000/svg|1999/xlink))", text)
        image = Image.open(file.with_suffix(".png"))
        assert image.width == 840 and image.getpixel((0, image.height - 1))[:3] == (255, 255, 255)


def test_magnitudes_show_the_picture_and_a_map_for_each_head(inside):
    names = figures(inside, "magnitudes")
    for name in names[:2]:
        shapes = [image.shape[:2] for image in pixels(inside, name)]
        assert shapes == [(16, 16), (1, 128), *[(4, 4)] * 6]  # picture, colour bar, two layers of three heads
    assert "blocks.0.norm1, variation 0.020" in words(inside, names[0])


def test_one_colour_scale_for_all_runs_and_heads(inside):
    """Read from the pixels: the same relative magnitude has the same colour in every run."""
    from matplotlib import colormaps

    limits = []
    for run, name in zip(read(inside, "magnitudes")["runs"], figures(inside, "magnitudes")[:2], strict=True):
        maps = np.array([head for each in run["maps"] for head in each["values"]])
        maps /= maps.mean(1, keepdims=True)
        colours = np.round(255 * colormaps[COLOURS](np.arange(256))[:, :3]).astype(int)
        shown = np.concatenate([image.reshape(-1, 3) for image in pixels(inside, name)[2:]]).astype(int)
        place = np.abs(shown[:, None] - colours).sum(-1).argmin(1)
        within = (place > 0) & (place < 255)
        slope, start = np.polyfit(maps.reshape(-1)[within], (place[within] + 0.5) / 256, 1)
        limits.append((-start / slope, (1 - start) / slope))
    np.testing.assert_allclose(limits[0], limits[1], atol=0.02)
    assert sum(limits[1]) == pytest.approx(2, abs=0.01), "the same on both sides of 1"


def test_the_distance_axis_is_the_same_for_all_runs_and_local_heads_are_counted(inside):
    ticks = [
        [word for word in words(inside, name) if re.fullmatch(r"[\d.]+", word)]
        for name in figures(inside, "attention_distance")
    ]
    assert ticks[0] == ticks[1] and len(ticks[0]) > 3
    section = next(s for s in read(inside, "index")["sections"] if s["kind"] == "attention_distance")
    for run, row, figure in zip(
        read(inside, "attention_distance")["runs"], section["tables"][0]["rows"], section["figures"], strict=True
    ):
        local = sum(head for layer in run["layers"] for head in layer["local"])
        assert row == [run["name"], f"{100 * local / 6:.2f}", str(local), "6"]
        assert f"{100 * local / 6:.0f} % of the heads are local" in figure["caption"]


def test_lambda_has_a_panel_for_each_layer_and_a_line_for_each_head(inside):
    for name in figures(inside, "lambda"):
        assert {f"blocks.{b}.norm{n}" for b in (0, 1) for n in (1, 2)} <= set(words(inside, name))
        assert [word for word in words(inside, name) if word.startswith("head")] == ["head 0", "head 1", "head 2"]


def test_positions_show_both_beginnings_and_the_end_with_the_token_framed(inside, stages):
    (name,) = figures(inside, "positions")
    assert len(pixels(inside, name)) == 1 + (2 + 4) * 3  # colour bar; two inits and four norms of three heads
    titles = {"before training, local", "for comparison, the beginning with trunc. normal", "after training"}
    assert {*titles, "4×4", "blocks.1", "norm2"} <= set(words(inside, name))
    frames = [path for path in drawing(inside, name).iter(f"{SVG}path") if "stroke: #d55e00" in path.get("style", "")]
    assert len(frames) == (2 + 4) * 3
    (name,) = figures(stages, "positions")
    assert {"8×8", "4×4", "2×2"} <= set(words(stages, name))
    frames = [path for path in drawing(stages, name).iter(f"{SVG}path") if "stroke: #d55e00" in path.get("style", "")]
    assert len(frames) == (2 + 4) * (1 + 2 + 5), "also on the coarser grids"


def test_a_pyramid_has_maps_of_each_grid_and_distances_in_one_unit(stages):
    shapes = [image.shape[:2] for image in pixels(stages, figures(stages, "magnitudes")[0])]
    assert shapes == [(16, 16), (1, 128), (8, 8), *[(2, 2)] * 5]
    section = next(s for s in read(stages, "index")["sections"] if s["kind"] == "attention_distance")
    assert section["figures"][0]["caption"].endswith("in patches of the finest grid that is shown, 8×8.")
    assert "patches of the 8×8 grid" in words(stages, "attention_distance-0")


def test_directions_have_the_same_range_everywhere_and_say_what_is_explained(inside):
    found = [words(inside, name) for name in figures(inside, "directions")]
    ticks = [[word for word in each if re.fullmatch(r"−?[\d.]+", word)] for each in found]
    assert all(each == ticks[0] for each in ticks)
    assert {"component 1 (41 %)", "component 2 (8 %)", "before, spread 0.82", "after, spread 0.61"} <= set(found[0])


def test_attention_maps_show_picture_rollout_and_heads(inside):
    for name in figures(inside, "attention_maps"):
        assert [image.shape[:2] for image in pixels(inside, name)] == [(16, 16), (4, 4), (1, 128), *[(4, 4)] * 3]
        assert {"input", "rollout", "blocks.1.attn"} <= set(words(inside, name))


def test_exits_have_bars_panels_and_pictures(inside):
    bars, panels = figures(inside, "exits")[:2]
    assert {"60.0 %", "20.0 %", "exit 3"} <= set(words(inside, bars))
    assert {"exit 1", "exit 2", "exit 3", "confidence, %", "accuracy, %"} <= set(words(inside, panels))
    section = next(s for s in read(inside, "index")["sections"] if s["kind"] == "exits")
    assert [row[:2] for row in section["tables"][0]["rows"][:3]] == [
        ["dtn-seed0, exit 1", "0.900"],
        ["dtn-seed0, exit 2", "0.900"],
        ["dtn-seed0, exit 3", "always"],
    ]
    assert len(section["samples"]) == 3
    assert section["samples"][0]["samples"][0].items() >= {"target": "cat", "prediction": "dog"}.items()


def test_what_a_dtn_became_is_a_table(inside):
    section = next(s for s in read(inside, "index")["sections"] if s["kind"] == "dtn_nature")
    assert section["tables"][0]["rows"][0] == ["blocks.0.norm1", "attn", "LN", "50", "20", "30", "50", "20", "30"]


def changed(directory, kind, change):
    """One kind of one small run, changed."""
    make_inside(directory, norms=["dtn"], blocks=vit(2, 2, 3), shown=1, without=[other for other in KINDS if other != kind])
    found = read(directory, kind)
    change(found)
    return found


def alone(directory, kind, change):
    """The same, drawn."""
    write(directory, kind, changed(directory, kind, change))
    return draw_all(directory)


def told(directory, kind, change):
    """The same, not drawn: captions of the figures and notes of the table."""
    section = KINDS[kind](changed(directory, kind, change))
    return captions(section), blocks(section, Table)[0].notes


def test_layers_that_began_differently_are_shown_before_and_after(tmp_path):
    """Read from the pixels: the brightest cell of each row of maps."""
    at = [[[0, 0], [0, 1]], [[0, 2], [1, 0]], [[1, 2], [2, 0]], [[2, 1], [2, 2]]]  # of each layer before and after

    def random(found):
        (run,) = found["runs"]
        run["init"] = "trunc_normal"
        for layer, places in zip(run["layers"], at, strict=True):
            layer["before"], layer["after"] = ([weights(3, *place, 0.5)] * 2 for place in places)

    (section,) = alone(tmp_path, "positions", random)
    maps = [image for image in pixels(tmp_path, "positions-0") if image.shape[:2] == (3, 3)]
    assert len(maps) == (1 + 2 * 4) * 2, "the other beginning once, and two rows for each layer"
    brightest = [list(divmod(int(image.sum(-1, dtype=int).argmax()), 3)) for image in maps[2::2]]
    assert brightest == [place for places in at for place in places]
    found = words(tmp_path, "positions-0")
    assert {"for comparison, the beginning with local", "before (trunc. normal) and after training"} <= set(found)
    assert found.count("before") == found.count("after") == 4
    assert "two rows for each layer of this run, before training (trunc. normal) and after" in section["figures"][0]["caption"]


def test_layers_that_began_alike_show_their_own_beginning_once(tmp_path):
    def elsewhere(found):
        for layer in found["runs"][0]["layers"]:
            layer["before"] = [weights(3, 2, 0, 0.5)] * 2

    alone(tmp_path, "positions", elsewhere)
    first = next(image for image in pixels(tmp_path, "positions-0") if image.shape[:2] == (3, 3))
    assert int(first.sum(-1, dtype=int).argmax()) == 6


def test_runs_on_different_grids_say_in_which_patches_distances_are(tmp_path):
    def finer(found):
        run = json.loads(json.dumps(found["runs"][0]))
        for layer in run["layers"]:
            layer.update(grid=[6, 6])
        for layer in found["runs"][0]["layers"]:
            layer.update(unit=2.0)
        found["runs"].append(run)

    captions, _ = told(tmp_path, "attention_distance", finer)
    assert len(captions) == 2 and all("in patches of the finest grid that is shown, 6×6." in caption for caption in captions)
    captions, _ = told(tmp_path, "attention_distance", lambda found: None)
    assert "finest" not in captions[0]


@pytest.mark.parametrize(
    ("kind", "what"), [("attention_distance", "attention"), ("magnitudes", "norm"), ("mean_variation", "norm")]
)
def test_what_was_left_out_is_counted_and_named(tmp_path, kind, what):
    def five(found):
        found["runs"][0]["left_out"] = [f"pool.{number}" for number in range(5)]

    captions, notes = told(tmp_path, kind, five)
    said = f"dtn-seed0: without 5 {what}s that could not be observed (pool.0, pool.1, pool.2, pool.3 and 1 more)."
    assert said in captions[-1] and said in notes


def test_exits_show_their_thresholds_and_say_where_these_are_from(tmp_path):
    found = changed(tmp_path, "exits", lambda found: found["runs"][0].update(calibrated=False))
    assert [row[1] for row in blocks(KINDS["exits"](found), Table)[0].rows[:3]] == ["0.900", "0.900", "always"]
    (caption, _), (note,) = told(tmp_path, "exits", lambda found: found["runs"][0].update(calibrated=False))
    evenly = "thresholds that share these images out evenly, for it was not calibrated."
    assert caption.endswith(evenly) and note.endswith(evenly)
    (caption, _), (note,) = told(tmp_path, "exits", lambda found: None)
    assert (
        caption.endswith("with the thresholds of its calibration.") and note == "dtn-seed0: the thresholds of its calibration."
    )


@pytest.mark.parametrize(
    ("name", "norm", "shown"),
    [
        ("walnut", "ln", "walnut (ln)"),
        ("main_1", "in", "main_1 (in)"),
        ("ln_small", "ln", "ln_small"),
        ("dtn_released-seed0", "dtn_released", "dtn_released-seed0"),
        ("dtn-seed0", "dtn_released", "dtn-seed0 (dtn_released)"),
        ("mine", "", "mine"),
    ],
)
def test_the_norm_is_named_unless_a_part_of_the_name_is_it(name, norm, shown):
    assert run_name({"name": name, "norm": norm}) == shown


def test_what_was_not_finite_leaves_a_gap(tmp_path):
    def no_mean(found):
        for layer in found["runs"][0]["layers"][:3]:
            layer.update(coefficient=None, low=None, high=None, why="RMSNorm subtracts no mean")

    (section,) = alone(tmp_path, "mean_variation", no_mean)
    assert [row[1] for row in section["tables"][0]["rows"]] == ["–", "–", "–", "1.014"]
    assert section["tables"][0]["notes"][0] == "dtn-seed0, blocks.0.norm1: RMSNorm subtracts no mean."


def test_nothing_to_draw_leaves_the_table(tmp_path):
    def nothing(found):
        for layer in found["runs"][0]["layers"]:
            layer.update(coefficient=None, low=None, high=None)

    (section,) = alone(tmp_path, "mean_variation", nothing)
    assert section["figures"] == [] and len(section["tables"]) == 1


def test_holes_and_even_maps_are_drawn(tmp_path):
    def holes(found):
        for each in found["runs"][0]["maps"]:
            each["values"] = [[None] * 9, [0.0] * 9]

    alone(tmp_path, "magnitudes", holes)
    assert len(pixels(tmp_path, "magnitudes-0")) == 2 + 4


def test_words_from_files_stay_words_and_no_picture_is_fetched(tmp_path):
    bad = "<script>$1$</script>"

    def foreign(found):
        found["runs"][0]["name"] = bad
        found["shown"][0] = {"image": "https://elsewhere.example/a.png", "target": bad}

    alone(tmp_path, "attention_maps", foreign)
    assert f"class: {bad}" in words(tmp_path, "attention_maps-0")
    svg = (tmp_path / "analysis/attention_maps-0.svg").read_text()
    assert "<script" not in svg and "elsewhere" not in svg


def test_figures_of_an_earlier_call_disappear_and_other_files_stay(tmp_path):
    alone(tmp_path, "directions", lambda found: None)
    for name in ("calibration.json", "directions-map.svg"):
        (tmp_path / "analysis" / name).write_text("{}")
    (tmp_path / "analysis/directions.json").unlink()
    alone(tmp_path, "mean_variation", lambda found: None)
    assert sorted(file.name for file in (tmp_path / "analysis").iterdir()) == [
        "calibration.json",
        "directions-map.svg",
        "index.json",
        "mean_variation-0.png",
        "mean_variation-0.svg",
        "mean_variation.json",
    ]


def test_the_same_numbers_give_the_same_files(tmp_path):
    def files():
        alone(tmp_path, "mean_variation", lambda found: None)
        return {file.name: file.read_bytes() for file in (tmp_path / "analysis").iterdir()}

    assert files() == files()


def test_nothing_there_and_damaged_numbers_are_named(tmp_path):
    (tmp_path / "analysis").mkdir()
    with pytest.raises(ValueError, match="nothing to draw, none of magnitudes, "):
        draw_all(tmp_path)
    for text in ("{", "[]", json.dumps({"kind": "exits"})):
        (tmp_path / "analysis/exits.json").write_text(text)
        with pytest.raises(ValueError, match=r"exits\.json: not the numbers of a figure"):
            draw_all(tmp_path)
