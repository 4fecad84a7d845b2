"""Errors under corruption."""

import json

import pytest

from analysis.report.made_up import make_comparison, make_run
from analysis.report.outline import blocks
from dynavit.analysis.measures.corruption_error import ALEXNET, summarise
from dynavit.analysis.report import Facts, Figures, Table, Text
from dynavit.analysis.report.read import read_comparison, read_run
from dynavit.analysis.report.sections.robustness import robustness_comparison, robustness_section


def robust(level, *, baseline=None, clean=0.1, corruptions=tuple(ALEXNET), severities=(1, 3, 5), samples=360, notes=()):
    """As `evaluate_robust` writes it: the error grows by `level` with each severity, and a little with each corruption."""
    errors = {name: [clean + level * s + 0.001 * i for s in severities] for i, name in enumerate(corruptions)}
    images = {"data": "digits", "split": "test", "samples": samples, "table": "small"}
    found = summarise(errors, clean, baseline)
    return {
        "kind": "corruptions",
        "conditions": {"model": {"step": 1}, "images": images},
        "severities": list(severities),
        "clean_error": clean,
        "errors": errors,
        **found,
        "baseline": baseline,
        "notes": [*notes, *found["notes"]],
    }


def store(run, result, kind="corruptions"):
    (run / "eval/robust").mkdir(parents=True, exist_ok=True)
    (run / "eval/robust" / f"{kind}.json").write_text(json.dumps(result))


def words(section):
    """Words in the only figure, as matplotlib is told."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    sheet = Figure()
    blocks(section, Figures)[0].figures[0].paint(sheet)
    return {text.get_text() for text in sheet.findobj(Text)}


# ---- One run


def test_a_run(tmp_path):
    run = make_run(tmp_path / "dtn")
    store(run, robust(0.05, baseline={"name": "ln-seed0", **robust(0.1)}, notes=("something to know",)))
    section = robustness_section(read_run(run))
    (facts,) = blocks(section, Facts)
    assert dict(facts.rows)["clean images"] == "error 10.00%"
    assert dict(facts.rows)["corrupted images"].startswith("error 25.70%, ")  # 0.1 + 0.05 * 3 + 0.001 * 7
    assert dict(facts.rows)["gap"] == "+15.70 percentage points"
    assert dict(facts.rows)["mCE"].endswith(" % of ln-seed0")
    (table,) = blocks(section, Table)
    assert table.header == ["corruption", "mean error, %", "CE against ln-seed0, %"]
    # fog is the tenth: 0.1 + 0.15 + 0.009 against 0.1 + 0.3 + 0.009
    assert ["fog", "25.90", f"{100 * 0.259 / 0.409:.1f}"] in table.rows
    assert "Something to know." in table.notes
    assert {name.replace("_", " ") for name in ALEXNET} <= words(section)
    assert {"10.0", "15.0", "36.4"} <= words(section)  # clean; the first at 1; the last at 5
    assert section.title == "Robustness" and "the test split of digits" in blocks(section, Text)[0].text


def test_without_a_baseline_there_is_no_column_for_it(tmp_path):
    run = make_run(tmp_path / "dtn")
    store(run, robust(0.05))
    section = robustness_section(read_run(run))
    assert blocks(section, Table)[0].header == ["corruption", "mean error, %"]
    assert "mCE" not in dict(blocks(section, Facts)[0].rows)


def test_unknown_clean_error(tmp_path):
    run = make_run(tmp_path / "dtn")
    result = robust(0.05) | {"clean_error": None, "gap": None, "kind": "imagenet_c"}
    store(run, result, "imagenet_c")
    section = robustness_section(read_run(run))
    assert dict(blocks(section, Facts)[0].rows)["gap"] == "–"
    assert "clean" not in words(section)


def test_other_collections(tmp_path):
    run = make_run(tmp_path / "dtn")
    store(run, {"samples": 30000, "error": 0.7, "top5": 0.5, "notes": ["a guess"]}, "imagenet_r")
    (table,) = robustness_section(read_run(run)).blocks
    assert table.rows == [["ImageNet-R", "30000", "70.00", "50.00"]]
    assert table.notes[1:] == ["A guess."]


def test_it_is_no_evaluation_of_its_own(tmp_path):
    run = make_run(tmp_path / "dtn")
    store(run, robust(0.05))
    found = read_run(run)
    assert set(found.evaluations) == {"test"}
    assert set(found.robust) == {"corruptions"}


def test_nothing_measured_says_nothing(tmp_path):
    assert robustness_section(read_run(make_run(tmp_path / "dtn"))).blocks == []


# ---- A comparison


@pytest.fixture
def comparison(tmp_path):
    return make_comparison(tmp_path / "norms", {"ln": [0.9, 0.9, 0.9], "dtn": [0.9, 0.9, 0.9]})


def rows_of(comparison):
    """setting -> {column: cell} of the first table, setting -> {corruption: cell} of the second, and the section."""
    section = robustness_comparison(read_comparison(comparison))
    if not section.blocks:
        return {}, {}, section
    overall, each = blocks(section, Table)
    rows = {row[0]: dict(zip(overall.header, row, strict=True)) for row in overall.rows}
    columns = list(zip(each.header, *each.rows, strict=True))
    return rows, {column[0]: dict(zip(columns[0][1:], column[1:], strict=True)) for column in columns[1:]}, section


def test_a_comparison(comparison):
    levels = {"ln": (0.1, 0.12, 0.14), "dtn": (0.05, 0.1, 0.07)}
    for norm, values in levels.items():
        for seed, level in enumerate(values):
            store(comparison / f"{norm}-seed{seed}", robust(level))
    rows, errors, section = rows_of(comparison)
    assert rows["ln"]["mCE against ln, %"] == "100.00 ± 0.00"
    own = [summarise(robust(dtn)["errors"], 0.1, robust(ln))["mce"] for ln, dtn in zip(*levels.values(), strict=True)]
    assert rows["dtn"]["mCE against ln, %"].split(" ± ")[0] == f"{sum(own) / 3:.2f}"
    assert rows["dtn"]["clean error, %"] == "10.00 ± 0.00"
    assert rows["dtn"]["seeds"] == "3"
    level = sum(levels["dtn"]) / 3
    assert errors["dtn"]["noise: gaussian noise"] == f"{100 * (0.1 + 3 * level):.1f}"
    assert errors["dtn"]["digital: jpeg compression"] == f"{100 * (0.1 + 3 * level + 0.014):.1f}"
    assert len(errors["ln"]) == 15
    assert blocks(section, Figures)[0].figures[0].label == "mCE of each setting against ln"


def test_only_what_was_measured_alike_is_compared(comparison):
    store(comparison / "ln-seed0", robust(0.1))
    store(comparison / "dtn-seed0", robust(0.1, samples=100))
    store(comparison / "dtn-seed1", robust(0.1))  # ln has no such seed
    rows, _, section = rows_of(comparison)
    assert list(rows["dtn"].values()) == ["dtn", "0 of 3", "–", "–", "–", "–"]
    assert rows["ln"]["mCE against ln, %"] == "100.00"
    assert any("Seeds that are missing" in note for note in blocks(section, Table)[0].notes)


def test_all_numbers_of_a_row_are_of_the_same_seeds(comparison):
    for seed in (0, 1, 2):
        store(comparison / f"ln-seed{seed}", robust(0.1))
    store(comparison / "dtn-seed0", robust(0.05))
    store(comparison / "dtn-seed1", robust(0.3, samples=100))
    store(comparison / "dtn-seed2", robust(0.3, severities=(1, 2)))
    rows, errors, _ = rows_of(comparison)
    assert (rows["ln"]["seeds"], rows["dtn"]["seeds"]) == ("3", "1 of 3")
    assert rows["dtn"]["corrupted error, %"] == "25.70"  # 0.1 + 0.05 * 3 + 0.001 * 7
    assert errors["dtn"]["noise: gaussian noise"] == "25.0"


def test_the_usual_way_of_measuring_counts(comparison):
    store(comparison / "ln-seed0", robust(0.1, corruptions=("fog",)))
    store(comparison / "ln-seed1", robust(0.1))
    store(comparison / "ln-seed2", robust(0.1))
    rows, errors, _ = rows_of(comparison)
    assert rows["ln"]["seeds"] == "2 of 3"
    assert len(errors["ln"]) == 15 and set(errors["dtn"].values()) == {"–"}


def test_without_results_of_the_baseline_there_is_no_mce(comparison):
    store(comparison / "dtn-seed0", robust(0.1))
    rows, _, section = rows_of(comparison)
    assert list(rows["dtn"]) == ["setting", "seeds", "clean error, %", "corrupted error, %", "gap, points"]
    assert rows["dtn"]["clean error, %"] == "10.00"
    assert blocks(section, Figures) == []
    assert not any("mCE" in note for note in blocks(section, Table)[0].notes)


def test_other_collections_in_a_comparison(comparison):
    images = {"data": "imagenet_r", "folder": "r"}
    for seed, error in enumerate((0.6, 0.7, 0.8)):
        result = {"samples": 30000, "error": error, "top5": 0.5, "conditions": {"model": {"step": seed}, "images": images}}
        store(comparison / f"ln-seed{seed}", result, "imagenet_r")
        store(comparison / f"dtn-seed{seed}", robust(0.1) | {"kind": "imagenet_c"}, "imagenet_c")
    section = robustness_comparison(read_comparison(comparison))
    settings, errors, collections = blocks(section, Table)
    assert (settings.label, errors.label) == (
        "Robustness of each setting on ImageNet-C",
        "Errors for each corruption on ImageNet-C",
    )
    assert settings.rows[1][:2] == ["dtn", "3"]
    assert collections.rows == [["ImageNet-R", "ln", "3", "70.00 ± 5.77", "50.00 ± 0.00"]]


def test_a_comparison_without_any(comparison):
    assert rows_of(comparison)[2].blocks == []
