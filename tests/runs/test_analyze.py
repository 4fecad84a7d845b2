"""`analyze_runs` from run directories to the page: every figure with its numbers, for each family of models."""

import json
import shutil
import xml.etree.ElementTree as ET

import pytest
import torch

import dynavit
from dynavit.runs.analyze import analyze_runs
from dynavit.runs.config import TrainConfig
from dynavit.runs.report import write_report
from dynavit.runs.train import train_run

TINY = {"epochs": 0.05, "batch_size": 32}
SWIN = {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 2, "patch_size": 1}
FAMILIES = {
    "vit": {"model": "vit_micro", "norm": "dtn", "model_options": {"depth": 2, "norm_blocks": 1}},
    "pvt": {"model": "test_pvt", "norm": "dtn", "loading": {"image_size": 32}},
    "swin": {"model": "swin_tiny_patch4_window7_224", "norm": "dtn", "model_options": SWIN},
    "cascade": {"model": "dvt_vit_digits", "norm": "dtn", "model_options": {"depth": 2}},
}
EVERYONE = {"magnitudes", "attention_distance", "mean_variation", "lambda", "positions", "directions", "attention_maps"}
EVERYONE |= {"dtn_nature"}


def trained(where, **options):
    from dynavit.runs.config import from_plain

    train_run(from_plain(TrainConfig, {**TINY, **options}), where)
    return where


class Trained(dict):
    """Runs by their names, each trained when it is first asked for."""

    def __init__(self, top):
        self.top = top

    def __missing__(self, name):
        options = {**FAMILIES["vit"], "norm": "ln"} if name == "ln" else FAMILIES[name]
        self[name] = trained(self.top / name, **options)
        return self[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def without_drawing(monkeypatch):
    """Most tests are about numbers, and drawing takes seconds."""
    monkeypatch.setattr("dynavit.runs.analyze.draw_all", lambda *_, **__: None)
    monkeypatch.setattr("dynavit.runs.analyze.write_report", lambda directory: directory / "report.html")


def numbers(directory):
    files = (directory / "analysis").glob("*.json")
    return {file.stem: json.loads(file.read_text()) for file in files if file.stem not in ("index", "calibration")}


@pytest.mark.parametrize(
    "family", [family if family == "cascade" else pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES]
)
def test_every_figure_is_made_with_its_numbers(runs, family):
    page = analyze_runs([runs[family]], images=12, shown=1)
    assert page == runs[family] / "report.html"
    found = numbers(runs[family])
    assert set(found) == EVERYONE | ({"exits"} if family == "cascade" else set())
    for kind, value in found.items():
        assert value["kind"] == kind
        assert (value["images"], value["data"], value["split"]) == (12, "digits", "test")
        assert [run["name"] for run in value["runs"]] == [family]
        assert len(value["shown"]) == 1
    index = json.loads((runs[family] / "analysis" / "index.json").read_text())
    figures = [figure for section in index["sections"] for figure in section["figures"]]
    drawn = {figure["json"] for figure in figures}
    assert {f"{kind}.json" for kind in set(found) - {"dtn_nature"}} <= drawn
    text = page.read_text()
    for figure in figures:
        svg = (runs[family] / "analysis" / figure["svg"]).read_text()
        assert ET.fromstring(svg).tag.endswith("svg")
        assert (runs[family] / "analysis" / figure["png"]).read_bytes().startswith(b"\x89PNG")
        assert figure["caption"].split(".")[0] in text
    for section in index["sections"]:
        assert section["title"] in text


def test_numbers_are_about_the_model(runs, without_drawing):
    analyze_runs([runs["vit"]], images=12, shown=1)
    found = {kind: value["runs"][0] for kind, value in numbers(runs["vit"]).items()}
    paths = ["blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2"]
    assert [layer["path"] for layer in found["magnitudes"]["layers"]] == paths
    assert [layer["path"] for layer in found["attention_distance"]["layers"]] == ["blocks.0.attn", "blocks.1.attn"]
    grid = found["magnitudes"]["layers"][0]["grid"]
    model = dynavit.load(runs["vit"])
    (heads,) = {len(layer["distance"]) for layer in found["attention_distance"]["layers"]}
    assert heads == model.blocks[0].attn.heads
    assert len(found["attention_maps"]["rollout"][0]["values"]) == grid[0] * grid[1]
    assert sum(found["attention_maps"]["rollout"][0]["values"]) == pytest.approx(1)
    assert found["attention_maps"]["of"] == "mean of all tokens"
    after = torch.tensor(found["positions"]["layers"][0]["after"], dtype=torch.float64)
    row, col = found["positions"]["token"]
    torch.testing.assert_close(after, model.blocks[0].norm1.positional_weights(tuple(grid), row * grid[1] + col))
    (nature,) = [layer for layer in found["dtn_nature"]["layers"] if layer["path"] == "blocks.0.norm1"]
    assert sum(nature["mean"].values()) == pytest.approx(1)
    assert sum(nature["variance"].values()) == pytest.approx(1)
    assert len(found["lambda"]["mean"]["epochs"]) == len(found["lambda"]["mean"]["layers"]["blocks.0.norm1"])


def test_positions_before_training_are_those_the_run_began_with(tmp_path, without_drawing):
    options = {**FAMILIES["vit"], "norm_options": {"init": "trunc_normal"}, "seed": 3}
    run = trained(tmp_path / "x", **options)
    analyze_runs([run], images=4, shown=1)
    (entry,) = numbers(run)["positions"]["runs"]
    torch.manual_seed(3)
    start = dynavit.create_model("vit_micro", norm="dtn", norm_options={"init": "trunc_normal"}, num_classes=10, in_chans=1)
    layer, norm = entry["layers"][0], start.blocks[0].norm1
    assert entry["init"] == "trunc_normal"
    row, col = entry["token"]
    # The seed and the order of construction give the same numbers; only the depth differs here, which comes later.
    expected = norm.positional_weights(tuple(layer["grid"]), row * layer["grid"][1] + col)
    torch.testing.assert_close(torch.tensor(layer["before"], dtype=torch.float64), expected)
    assert layer["before"] != layer["after"]


def test_cascade_exits_with_stored_thresholds(runs, tmp_path, without_drawing):
    from dynavit.models.cascade.policy import ExitPolicy

    run = shutil.copytree(runs["cascade"], tmp_path / "x")
    analyze_runs([run], images=24, shown=1)
    exits = numbers(run)["exits"]["runs"][0]
    assert not exits["calibrated"]
    assert exits["thresholds"][1] is None
    assert sum(exits["shares"]) == pytest.approx(1)
    assert all(sum(bin["samples"] for bin in bins) == 24 for bins in exits["reliability"])
    assert sum(len(images) for images in exits["gallery"]) == 24
    (run / "policy.json").write_text(ExitPolicy((0.0, -1.0)).to_json())  # everybody leaves at the first exit
    analyze_runs([run], images=24, shown=1)
    exits = numbers(run)["exits"]["runs"][0]
    assert exits["calibrated"]
    assert exits["thresholds"] == [0.0, None]
    assert exits["shares"] == [1.0, 0.0]
    assert exits["accuracy_with_exits"] == exits["accuracy"][0]


def test_several_runs_side_by_side_see_the_same_images(runs, tmp_path, without_drawing):
    both = [runs["ln"], runs["vit"]]
    page = analyze_runs(both, images=12, shown=1, command="dynavit analyze")
    assert page == runs["ln"].parent / "ln+vit" / "report.html"
    found = numbers(page.parent)
    assert [run["name"] for run in found["magnitudes"]["runs"]] == ["ln", "vit"]
    assert [run["name"] for run in found["positions"]["runs"]] == ["vit"]
    elsewhere = analyze_runs(both, images=12, shown=1, out=tmp_path / "y")
    assert elsewhere == tmp_path / "y" / "report.html"
    assert numbers(elsewhere.parent) == found


def test_kinds_of_an_earlier_call_disappear(runs, tmp_path, without_drawing):
    out = tmp_path / "x"
    analyze_runs([runs["vit"]], images=4, shown=1, out=out)
    assert (out / "analysis" / "positions.json").is_file()
    analyze_runs([runs["ln"]], images=4, shown=1, out=out)
    assert not (out / "analysis" / "positions.json").exists()
    assert (out / "analysis" / "magnitudes.json").is_file()


@pytest.mark.usefixtures("nothing_is_drawn")
def test_a_comparison_stands_for_its_settings(runs, tmp_path):
    settings = []
    for name, source in (("ln", "ln"), ("dtn", "vit")):
        for seed in (0, 1):
            shutil.copytree(runs[source], tmp_path / f"{name}-seed{seed}", ignore=shutil.ignore_patterns("analysis"))
        settings.append({"name": name, "values": {"norm": name}, "runs": [f"{name}-seed0", f"{name}-seed1"]})
    (tmp_path / "comparison.json").write_text(json.dumps({"varied": ["norm"], "settings": settings, "seeds": [0, 1]}))
    page = analyze_runs([tmp_path], images=8, shown=1, layers=["blocks.0.norm1"])
    assert page == tmp_path / "report.html"
    assert [run["name"] for run in numbers(tmp_path)["magnitudes"]["runs"]] == ["ln-seed0", "dtn-seed0"]
    text = page.read_text()
    assert "Attention distance" in text
    assert "ln-seed0: a dot for each head" in text
    assert write_report(tmp_path) == page
    assert page.read_text() == text


def test_what_the_numbers_are_of(runs, tmp_path, without_drawing, monkeypatch):
    looked_at = []

    def look_inside(model, batches, shown, **options):
        looked_at.append(torch.cat(list(batches)))
        raise KeyboardInterrupt

    analyze_runs([runs["vit"]], images=5, shown=9, out=tmp_path)
    for value in numbers(tmp_path).values():
        (run,) = value["runs"]
        assert len(value["shown"]) == 5
        source = {"path": str(runs["vit"]), "model": "vit_micro", "checkpoint": "last", "weights": "model", "step": 2}
        assert run["source"] == source
    monkeypatch.setattr("dynavit.runs.analyze.look_inside", look_inside)
    with pytest.raises(KeyboardInterrupt):
        analyze_runs([runs["vit"]], images=5, out=tmp_path)
    from dynavit.runs.subject import Subject

    (everything,) = [batch.inputs for (batch,) in Subject(run=runs["vit"]).open().loader("test", 360).epoch()]
    evenly = everything[torch.tensor([0, 72, 144, 216, 288])]
    torch.testing.assert_close(looked_at[0], evenly)


def test_distances_of_different_grids_have_one_unit(runs, tmp_path, without_drawing):
    analyze_runs([runs["vit"], runs["pvt"]], images=4, shown=1, out=tmp_path)
    layers = [layer for run in numbers(tmp_path)["attention_distance"]["runs"] for layer in run["layers"]]
    finest = max(layer["grid"][0] for layer in layers)
    assert all(layer["unit"] == finest / layer["grid"][0] for layer in layers)
    assert len({layer["unit"] for layer in layers}) > 1


def test_unfinished_runs_of_a_comparison_are_passed_over(runs, tmp_path, without_drawing):
    from dynavit.engine.progress import Progress

    class Notes(Progress):
        def __init__(self):
            self.texts = []

        def note(self, text):
            self.texts.append(text)

    for name in ("dtn-seed0", "dtn-seed1", "ln-seed0"):
        shutil.copytree(runs["vit"], tmp_path / name)
    for name in ("dtn-seed0", "ln-seed0"):
        (tmp_path / name / "finished.json").unlink()
    settings = [
        {"name": "dtn", "values": {"norm": "dtn"}, "runs": ["dtn-seed0", "dtn-seed1"]},
        {"name": "ln", "values": {"norm": "ln"}, "runs": ["ln-seed0"]},
    ]
    (tmp_path / "comparison.json").write_text(json.dumps({"varied": ["norm"], "settings": settings}))
    notes = Notes()
    analyze_runs([tmp_path], images=4, shown=1, out=tmp_path / "x", progress=notes)
    assert [run["name"] for run in numbers(tmp_path / "x")["magnitudes"]["runs"]] == ["dtn-seed1"]
    assert any("no run of ln is finished" in text for text in notes.texts)


def test_where_nothing_can_be_written_is_noticed_first(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("dynavit.runs.subject.Subject.open", None)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        analyze_runs([runs["vit"]], out=tmp_path / "file")


def test_bad_input_says_what_exists(runs, tmp_path):
    with pytest.raises(ValueError, match=r"blocks\.0\.norm1"):
        analyze_runs([runs["vit"]], images=4, layers=["blocks.0.norm9"])
    with pytest.raises(ValueError, match="no split 'vla'; it has"):
        analyze_runs([runs["vit"]], images=4, split="vla")
    with pytest.raises(ValueError, match="twice"):
        analyze_runs([runs["vit"], runs["vit"]])
    with pytest.raises(FileNotFoundError, match="no such directory"):
        analyze_runs([tmp_path / "nothing"])
    with pytest.raises(ValueError, match="give a directory of a run"):
        analyze_runs([])
    with pytest.raises(ValueError, match="images=0, shown=2"):
        analyze_runs([runs["vit"]], images=0)


def test_a_model_without_attention(tmp_path):
    run = trained(tmp_path / "x", model="test_resnet", model_options={"in_chans": 1}, loading={"image_size": 32})
    with pytest.raises(ValueError, match="attention"):
        analyze_runs([run], images=4)
    assert not list((run / "analysis").iterdir())
