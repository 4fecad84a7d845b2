"""Sections of ListOps from stored evaluations: rows that only one model gets right, the plateau, and what is left out."""

from pathlib import Path

import pytest

from dynavit.analysis.report.read import Comparison, Inside, Run, Setting
from dynavit.analysis.report.sections.listops import comparison_sections, disagreements, run_sections, steps_to

LADDER = [{"name": "majority", "accuracy": 0.2}, {"name": "root operator", "accuracy": 0.4}]
NOTHING_INSIDE = Inside("", Path(), {}, {})


def run(name, predictions, *, seed=0, labels="0123456789", log=(), ladder=LADDER):
    right = sum(a == b for a, b in zip(labels, predictions, strict=True))
    result = {"accuracy": right / len(labels), "samples": len(labels), "labels": labels, "predictions": predictions}
    result |= {"ladder": ladder, "by_root": [{"root": "[MIN", "samples": 10, "accuracy": 0.5}]}
    return Run(name, Path(name), {"seed": seed}, {}, list(log), {"test": result}, {}, {}, {}, NOTHING_INSIDE, True)


def comparison(*settings):
    made = [Setting(values["norm"], values, runs, len(runs), {}) for values, runs in settings]
    return Comparison("", "", "", ["norm"], made[0], made, [0, 1], {}, {}, NOTHING_INSIDE)


def test_rows_that_only_one_gets_right():
    one, other = (run("x", text).final for text in ("0123400000", "0100400009"))
    assert disagreements(one, other) == (2, 1)  # 2 and 3, against 9
    assert disagreements(one, run("x", "0123400000", labels="0123456780").final) is None
    assert disagreements(one, {}) is None


def test_a_setting_is_tested_against_the_baselines_norm_with_the_same_values():
    ln, other, same = run("a", "0123456789"), run("b", "0000000000"), run("c", "0123456780")
    found = comparison(
        ({"norm": "ln", "mask": True}, [ln]), ({"norm": "ln", "mask": False}, [other]), ({"norm": "in", "mask": False}, [same])
    )
    (section,) = comparison_sections(found)
    rows = section.blocks[-1].rows
    assert [row[-1] for row in rows] == ["–", "–", "0.008 (8 : 0)"]  # not against the first
    assert [row[2] for row in rows] == ["1 of 1", "0 of 1", "1 of 1"]


def test_seeds_are_paired_and_counted():
    log = [{"kind": "train", "step": 20, "accuracy": 0.25}, {"kind": "train", "step": 40, "accuracy": 0.31}]
    ln = [run("a", "0123456789", seed=0, log=log), run("b", "0000000000", seed=1, log=log[:1])]
    bn = [run("c", "0120000000", seed=1)]
    (section,) = comparison_sections(comparison(({"norm": "ln"}, ln), ({"norm": "bn"}, bn)))
    (first, second), notes = section.blocks[-1].rows, section.blocks[-1].notes
    assert first[1:4] == ["55.00", "1 of 2", "40 (1 of 2)"]
    assert second[1:] == ["30.00", "0 of 1", "–", "0.500 (2 : 0)"]
    assert notes[0] == "Readers: majority 20.0%, root operator 40.0%." and "30.0%" in notes[1]
    assert steps_to(ln[0], 0.3) == 40 and steps_to(ln[1], 0.3) is None


def test_a_run_shows_its_roots():
    (section,) = run_sections(run("one", "0123400000"))
    assert section.title == "What the accuracy of one means" and section.blocks[-1].rows == [["[MIN", "10", "50.00"]]
    assert len(section.blocks) == 2


@pytest.mark.parametrize("sections", [run_sections, lambda made: comparison_sections(comparison(({"norm": "ln"}, [made])))])
def test_without_a_ladder_there_is_nothing_to_show(sections):
    assert sections(run("one", "0123400000", ladder=[])) == []
