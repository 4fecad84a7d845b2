import pytest

from analysis.report.made_up import ANGLE, HITS, make_comparison
from dynavit.analysis.report.read import read_comparison
from dynavit.analysis.report.table import best_setting, comparison_table, table_notes
from dynavit.common.metric import Metric

# Degrees: less is better. dtn - ln is -2.0, -3.0, -2.5: mean -2.5, sample deviation 0.5.
ANGLES = {"ln": [12.0, 13.0, 11.0], "dtn": [10.0, 10.0, 8.5], "bn": [12.5, 12.0, 11.5]}


@pytest.fixture
def compared(tmp_path):
    def compare(accuracies=None, **options):
        chosen = {} if accuracies is None else {"accuracies": accuracies}
        return read_comparison(make_comparison(tmp_path / "c", **chosen, **options))

    return compare


def test_the_table(compared):
    header, rows = comparison_table(compared())
    assert header == [
        "norm",
        "top-1, %",
        "seeds",
        "difference to ln, points",
        "excludes 0",
        "parameters",
        "GMACs",
        "time per step",
    ]
    assert rows[0] == ["ln", "96.39 ± 0.16", "3", "–", "–", "307,946", "0.0051", "1.00×"]
    # ± : (96.94, 97.22, 97.78) has sample deviation 0.428; the differences 0.83, 0.83, 1.11 have 0.162.
    assert rows[3] == ["dtn", "97.31 ± 0.25 *", "3", "+0.92 [+0.52, +1.32]", "yes", "310,946", "0.0054", "1.21×"]
    assert [row[4] for row in rows] == ["–", "yes", "no", "yes"]


def test_the_best_is_marked_with_what_the_intervals_support(compared):
    notes = " ".join(table_notes(compared()))
    assert "Top-1 on the test split: mean ± standard error of the mean over n = 3 seeds. Higher is better." in notes
    assert "Differences to ln are in percentage points, paired by seed" in notes
    assert "dtn, the highest mean. The paired 95 % interval separates it from ln, bn and does not separate it from in." in notes


def test_unfinished_seeds_are_counted(compared):
    comparison = compared(unfinished=frozenset({"in-seed0", "in-seed1", "in-seed2", "bn-seed1"}))
    _, rows = comparison_table(comparison)
    assert rows[1][2] == "2 of 3"
    assert rows[2][1:5] == ["–", "0 of 3", "–", "–"]
    assert "n = 2 to 3 seeds" in table_notes(comparison)[0]


def test_one_seed_has_neither_error_nor_interval_nor_winner(compared):
    comparison = compared({"ln": [0.96], "dtn": [0.97]})
    _, rows = comparison_table(comparison)
    assert [row[1:5] for row in rows] == [["96.00", "1", "–", "–"], ["97.00", "1", "+1.00", "one seed"]]
    notes = " ".join(table_notes(comparison))
    assert "neither ± nor interval" in notes and "Marked" not in notes and "Student" not in notes


def test_equal_differences_are_no_evidence(compared):
    _, rows = comparison_table(compared({"ln": [0.96, 0.97, 0.98], "dtn": [0.97, 0.98, 0.99]}))
    assert rows[1][3:5] == ["+1.00", "no spread"]


def test_nothing_finished_and_no_baseline(compared):
    comparison = compared({"rms": [0.96]}, unfinished=frozenset({"rms-seed0"}))
    header, rows = comparison_table(comparison)
    assert header[3] == "difference to baseline, points"
    assert rows[0][1:5] == ["–", "0 of 1", "–", "–"]
    assert table_notes(comparison) == ["No run has finished yet."]


# ---- Other tasks


def test_a_metric_that_is_smaller_for_better_models(compared):
    comparison = compared(ANGLES, metrics=[ANGLE, HITS])
    header, rows = comparison_table(comparison)
    assert header[1:5] == ["angle error, degrees", "seeds", "difference to ln, degrees", "excludes 0"]
    # t(0.975, 2) = 4.303 times 0.5 / sqrt(3) is 1.242.
    assert rows[1][1:5] == ["9.5 ± 0.5 *", "3", "−2.5 [−3.7, −1.3]", "yes"]
    assert rows[0][1] == "12.0 ± 0.6" and rows[2][1] == "12.0 ± 0.3"
    notes = table_notes(comparison)
    assert notes[0] == "Angle error on the test split: mean ± standard error of the mean over n = 3 seeds. Lower is better."
    assert notes[1].startswith("Differences to ln are in degrees, paired by seed")
    assert notes[-1].startswith("Marked: dtn, the lowest mean. The paired 95 % interval separates it from ln, bn.")


def test_the_best_follows_the_direction(compared):
    comparison = compared(ANGLES, metrics=[Metric("score", "score")])
    assert best_setting(comparison).name in ("ln", "bn")
    assert comparison_table(comparison)[0][3] == "difference to ln", "it has no unit"
    assert "Differences to ln are paired by seed" in table_notes(comparison)[1]


def test_results_on_validation_where_there_is_no_test_split(compared):
    comparison = compared(ANGLES, metrics=[ANGLE], split="val")
    assert comparison_table(comparison)[1][1][1] == "9.5 ± 0.5 *"
    assert table_notes(comparison)[0].startswith("Angle error on the validation split: mean")


def test_without_a_metric_the_loss_is_shown_and_nothing_is_called_better(compared):
    comparison = compared(ANGLES, metrics=[])
    header, rows = comparison_table(comparison)
    assert header == ["norm", "loss", "seeds", "parameters", "GMACs", "time per step"]
    assert rows[1] == ["dtn", "0.2500 ± 0.0000", "3", "308,946", "0.0052", "1.07×"]
    first, *others = table_notes(comparison)
    assert first == (
        "Loss on the test split: mean ± standard error of the mean over n = 3 seeds. "
        "The task names no metric to judge settings by."
    )
    assert not any("Marked" in note or "Differences" in note for note in others)


def test_runs_that_have_finished_and_were_not_evaluated(compared, tmp_path):
    names = [f"{norm}-seed{seed}" for norm in ANGLES for seed in range(3)]
    compared(ANGLES, unfinished=frozenset(names))
    for name in names:
        (tmp_path / "c" / name / "finished.json").write_text("{}")
    comparison = read_comparison(tmp_path / "c")
    assert table_notes(comparison) == ["No run has been evaluated."]
