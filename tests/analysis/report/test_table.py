import pytest

from analysis.report.made_up import make_comparison
from dynavit.analysis.report.read import read_comparison
from dynavit.analysis.report.table import comparison_table, table_notes


@pytest.fixture
def compared(tmp_path):
    def compare(**options):
        return read_comparison(make_comparison(tmp_path / "c", **options))

    return compare


def test_the_table(compared):
    header, rows = comparison_table(compared())
    assert header == [
        "norm",
        "accuracy, %",
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
    assert "mean ± standard error of the mean over n = 3 seeds" in notes
    assert "dtn, the highest mean. The paired 95 % interval separates it from ln, bn and does not separate it from in." in notes


def test_unfinished_seeds_are_counted(compared):
    comparison = compared(unfinished=frozenset({"in-seed0", "in-seed1", "in-seed2", "bn-seed1"}))
    _, rows = comparison_table(comparison)
    assert rows[1][2] == "2 of 3"
    assert rows[2][1:5] == ["–", "0 of 3", "–", "–"]
    assert "n = 2 to 3 seeds" in table_notes(comparison)[0]


def test_one_seed_has_neither_error_nor_interval_nor_winner(compared):
    comparison = compared(accuracies={"ln": [0.96], "dtn": [0.97]})
    _, rows = comparison_table(comparison)
    assert [row[1:5] for row in rows] == [["96.00", "1", "–", "–"], ["97.00", "1", "+1.00", "one seed"]]
    notes = " ".join(table_notes(comparison))
    assert "neither ± nor interval" in notes and "Marked" not in notes and "Student" not in notes


def test_equal_differences_are_no_evidence(compared):
    _, rows = comparison_table(compared(accuracies={"ln": [0.96, 0.97, 0.98], "dtn": [0.97, 0.98, 0.99]}))
    assert rows[1][3:5] == ["+1.00", "no spread"]


def test_nothing_finished_and_no_baseline(compared):
    comparison = compared(accuracies={"rms": [0.96]}, unfinished=frozenset({"rms-seed0"}))
    header, rows = comparison_table(comparison)
    assert header[3] == "difference to baseline, points"
    assert rows[0][1:5] == ["–", "0 of 1", "–", "–"]
    assert table_notes(comparison) == ["No run has finished yet."]
