import pytest

from dynavit.common.registry import UnknownNameError, nearest_match_error

NAMES = ["dtn", "dtn_released", "ln", "rms"]


def test_the_nearest_name_is_suggested_and_all_are_listed():
    error = nearest_match_error("norm", "dtm", NAMES)
    assert str(error) == "unknown norm 'dtm'. Did you mean 'dtn'? Known: dtn, dtn_released, ln, rms"


def test_case_does_not_matter():
    assert "Did you mean 'rms'?" in str(nearest_match_error("norm", "RMS", NAMES))


def test_nothing_near_means_no_suggestion():
    assert str(nearest_match_error("norm", "zzzz", ["ln"])) == "unknown norm 'zzzz'. Known: ln"


def test_it_can_be_caught_as_a_value_error():
    with pytest.raises(ValueError, match="unknown norm"):
        raise nearest_match_error("norm", "x", NAMES)
    assert issubclass(UnknownNameError, ValueError)
