"""Measures of robustness against numbers worked out by hand."""

import pytest

from dynavit.analysis.measures.corruption_error import (
    ALEXNET,
    ALEXNET_CLEAN,
    corruption_errors,
    mean_corruption_error,
    mean_error,
    relative_corruption_errors,
    relative_mean_corruption_error,
    summarise,
)

ERRORS = {"fog": [0.1, 0.3], "snow": [0.2, 0.4]}
BASELINE = {"fog": [0.2, 0.6], "snow": [0.3, 0.3]}


def test_corruption_errors_are_ratios_of_sums_not_means_of_ratios():
    assert corruption_errors(ERRORS, BASELINE) == pytest.approx({"fog": 50.0, "snow": 100.0})
    uneven = corruption_errors({"fog": [0.1, 0.1]}, {"fog": [0.1, 0.3]})
    assert uneven == pytest.approx({"fog": 50.0})  # the mean of ratios would be 66.7
    assert mean_corruption_error(ERRORS, BASELINE) == pytest.approx(75.0)


def test_relative_errors_are_of_what_corruption_adds():
    # fog: (0.4 - 2 * 0.05) / (0.8 - 2 * 0.1), snow: (0.6 - 0.1) / (0.6 - 0.2)
    assert relative_corruption_errors(ERRORS, 0.05, BASELINE, 0.1) == pytest.approx({"fog": 50.0, "snow": 125.0})
    assert relative_mean_corruption_error(ERRORS, 0.05, BASELINE, 0.1) == pytest.approx(87.5)


def test_a_model_is_as_robust_as_itself():
    assert mean_corruption_error(ERRORS, ERRORS) == pytest.approx(100)
    assert relative_mean_corruption_error(ERRORS, 0.01, ERRORS, 0.01) == pytest.approx(100)


def test_a_baseline_without_mistakes_has_no_ratio():
    perfect = {"fog": [0.0, 0.0], "snow": [0.3, 0.3]}
    assert corruption_errors(ERRORS, perfect) == pytest.approx({"fog": None, "snow": 100.0})
    found = summarise(ERRORS, 0.1, {"errors": perfect, "clean_error": 0.4})
    assert found["mce"] == pytest.approx(100.0)
    assert found["relative_mce"] is None, "corruption adds nothing to its error"
    assert found["notes"] == [
        "mCE leaves out fog: the baseline makes no mistake there",
        "relative mCE leaves out fog, snow: corruption adds nothing to the baseline's error there",
        "mCE is over 2 of 15 corruptions",
    ]


def test_rounding_adds_nothing():
    """The baseline loses and gains the same number of 360 images, but the sum of its errors is off by 1e-16."""
    clean, changes = 1 - 332 / 360, (1, 1, -1, 0, -1)
    its = [1 - (332 + change) / 360 for change in changes]
    assert sum(its) > 5 * clean, "or this tests nothing"
    assert relative_corruption_errors({"fog": [0.2] * 5}, 0.1, {"fog": its}, clean) == {"fog": None}


def test_other_severities_cannot_be_compared():
    with pytest.raises(ValueError, match="fog: the baseline was not measured at the same 2 severities"):
        corruption_errors({"fog": [0.1, 0.2]}, {"fog": [0.1]})
    with pytest.raises(ValueError, match="snow: the baseline was not measured"):
        corruption_errors({"snow": [0.1]}, {"fog": [0.1]})


def test_alexnet_has_100():
    assert len(ALEXNET) == 15
    assert mean_corruption_error(ALEXNET, ALEXNET) == pytest.approx(100)
    assert relative_mean_corruption_error(ALEXNET, ALEXNET_CLEAN, ALEXNET, ALEXNET_CLEAN) == pytest.approx(100)
    half = {name: [mean / 2 for mean in means] for name, means in ALEXNET.items()}
    assert mean_corruption_error(half, ALEXNET) == pytest.approx(50)
    fog = {"fog": [0.1, 0.2, 0.3, 0.4, 0.5]}
    assert mean_corruption_error(fog, ALEXNET) == pytest.approx(100 * 0.3 / 0.819)
    # Published: ResNet-50's corruption errors, whose mean is 76.7.
    ce = [80, 82, 83, 75, 89, 78, 80, 78, 75, 66, 57, 71, 85, 77, 77]
    resnet = {
        name: [mean * percent / 100 for mean in means] for (name, means), percent in zip(ALEXNET.items(), ce, strict=True)
    }
    assert mean_corruption_error(resnet, ALEXNET) == pytest.approx(76.7, abs=0.3)


def test_the_summary_of_one_model():
    found = summarise(ERRORS, 0.05)
    assert mean_error(ERRORS) == found["mean_error"] == pytest.approx(0.25)
    assert found["gap"] == pytest.approx(0.2)
    assert found["ce"] is found["mce"] is found["relative_mce"] is None
    assert summarise(ERRORS, None)["gap"] is None
    assert summarise(ERRORS, None, {"errors": BASELINE, "clean_error": 0.1})["relative_mce"] is None
