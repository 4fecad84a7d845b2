"""Budgets: targets and limits on a calibration curve, clipping, refusals that say what can be reached."""

import math
from itertools import pairwise

import pytest

from dynavit.deploy.serve.budget import (
    Budget,
    BudgetError,
    decide,
    parse_budget,
    parse_budget_text,
    parse_budget_words,
)
from dynavit.deploy.serve.curve import EVERYONE, NOBODY, Curve, Point, read_point

GMACS = (1.0, 3.0, 6.0)
POINTS = (  # thresholds, shares; GMACs follow
    ((0.0, 0.0), (1.0, 0.0, 0.0), 0.60),
    ((0.5, 0.3), (0.7, 0.2, 0.1), 0.80),
    ((0.8, 0.7), (0.4, 0.3, 0.3), 0.90),
    ((NOBODY, NOBODY), (0.0, 0.0, 1.0), 0.85),
)


def point(thresholds, shares, accuracy):
    return Point(thresholds, sum(share * cost for share, cost in zip(shares, GMACS, strict=True)), accuracy, shares=shares)


CURVE, NOTES = Curve.from_points([point(*each) for each in POINTS], GMACS, point(*POINTS[1]))


def applied(curve=CURVE, seconds=None, **budget):
    return curve.apply(parse_budget(budget), seconds)


def test_gmacs():
    """The dearest point with expected GMACs of at most so many: 1, 1.9, 3.1, 6."""
    assert [applied(gmacs=g).thresholds for g in (1.0, 1.8, 1.9, 3.2, 99.0)] == [POINTS[at][0] for at in (0, 0, 1, 2, 3)]
    assert applied(gmacs=3.2).expected_gmacs == pytest.approx(3.1) and applied(gmacs=3.2).expected_accuracy == 0.9
    with pytest.raises(BudgetError, match="the least is 1") as caught:
        applied(gmacs=0.5)
    assert caught.value.reachable == {"gmacs": [1.0, 6.0]}


def test_accuracy():
    """The cheapest point that reaches it, which need not be the dearest."""
    assert [applied(accuracy=a).thresholds for a in (0.5, 0.7, 0.85)] == [POINTS[at][0] for at in (0, 1, 2)]
    with pytest.raises(BudgetError, match=r"the best is 0.9") as caught:
        applied(accuracy=0.95)
    assert caught.value.reachable == {"accuracy": [0.6, 0.9]}


def test_latency():
    """Expected compute time with measured s_k(1): 10, 30, 60 ms after each exit."""
    seconds = {1: 0.010, 2: 0.020, 3: 0.030}
    cost = lambda exit, batch: seconds[exit]  # noqa: E731
    assert [applied(seconds=cost, latency_ms=ms).thresholds for ms in (10, 19.1, 31.1, 60)] == [each[0] for each in POINTS]
    with pytest.raises(BudgetError, match="latency_ms=5") as caught:
        applied(seconds=cost, latency_ms=5)
    assert caught.value.reachable["latency_ms"] == pytest.approx([10.0, 60.0])
    with pytest.raises(BudgetError, match="measured costs"):
        applied(latency_ms=5)


def test_level():
    assert [applied(level=level).thresholds for level in (0, 0.33, 0.5, 0.7, 1)] == [POINTS[at][0] for at in (0, 1, 2, 2, 3)]
    assert [CURVE.level_of(at) for at in range(4)] == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_levels_are_monotone():
    """I11 on a curve: with more budget no threshold falls."""
    rows = [applied(level=at / 50).thresholds for at in range(51)]
    assert all(low <= high for before, after in pairwise(rows) for low, high in zip(before, after, strict=True))


def test_thresholds():
    assert applied(thresholds=[0.8, 0.7]).expected_accuracy == 0.9  # a point of the curve
    own = applied(thresholds=[0.9, -1.0])
    assert own.thresholds == (0.9, 0.0) and own.expected_accuracy is None and own.expected_gmacs is None
    for wrong in ([0.5], [0.5, 0.5, 0.5], [0.5, "x"]):
        with pytest.raises(BudgetError, match="thresholds"):
            applied(thresholds=wrong)
    with pytest.raises(BudgetError, match="thresholds"):
        CURVE.apply(Budget(thresholds=(math.nan, 0.5)))


def test_without_target():
    assert applied().thresholds == POINTS[1][0] and applied().expected_accuracy == 0.8


def test_limits():
    """max_exit and max_gmacs cap this image; who would go further leaves there, and nobody measured how accurately."""
    capped = applied(gmacs=3.2, max_exit=2)
    assert capped.max_exit == 2 and capped.shares == pytest.approx((0.4, 0.6, 0.0))
    assert capped.expected_gmacs == pytest.approx(0.4 * 1 + 0.6 * 3) and capped.expected_accuracy is None
    assert applied(level=0, max_exit=1).expected_accuracy == 0.6  # nobody is stopped by it
    assert [applied(max_gmacs=m).max_exit for m in (1.0, 2.9, 3.0, 99)] == [1, 1, 2, 3]
    assert applied(max_gmacs=99, max_exit=1).max_exit == 1
    with pytest.raises(BudgetError, match="even exit 1 costs 1") as caught:
        applied(max_gmacs=0.5)
    assert caught.value.reachable == {"max_gmacs": [1.0, 6.0]}
    with pytest.raises(BudgetError, match="3 exits") as caught:
        applied(max_exit=4)
    assert caught.value.reachable == {"max_exit": [1, 3]}


def test_clipping():
    narrow = CURVE.within(Budget(gmacs=1.9), Budget(gmacs=3.2))
    assert [applied(narrow, level=level).thresholds for level in (0, 1 / 3, 1)] == [POINTS[at][0] for at in (1, 1, 2)]
    assert [applied(narrow, level=level).clipped for level in (0, 1 / 3, 2 / 3, 1)] == [True, False, False, True]
    assert applied(narrow, thresholds=[0.0, 0.9]).thresholds == (0.5, 0.7) and applied(narrow, thresholds=[0.0, 0.9]).clipped
    assert not applied(narrow).clipped
    with pytest.raises(BudgetError, match="empty"):
        CURVE.within(Budget(gmacs=6.0), Budget(gmacs=1.9))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"gmacs": -1}, "greater than 0"),
        ({"gmacs": math.nan}, "gmacs"),
        ({"gmacs": math.inf}, "gmacs"),
        ({"gmacs": "1.2"}, "gmacs"),
        ({"level": 1.1}, "at most 1"),
        ({"level": True}, "level"),
        ({"max_exit": 0}, "at least 1"),
        ({"max_exit": 1.5}, "whole"),
        ({"deadline_ms": 0}, "greater than 0"),
        ({"on_deadline": "later"}, "on_deadline"),
        ({"degrade": 1}, "true or false"),
        ({"gmac": 1.0}, "gmacs"),
        ({"gmacs": 1, "level": 0.5}, "one target, got level and gmacs"),
        ([], "budget"),
    ],
)
def test_bad_budgets(wrong, said):
    """F22"""
    with pytest.raises(BudgetError, match=said):
        parse_budget(wrong)


def test_words():
    assert parse_budget_words({"gmacs": "1.2", "deadline_ms": "50", "max_exit": "2", "degrade": "true"}) == Budget(
        gmacs=1.2, deadline_ms=50.0, max_exit=2, degrade=True
    )
    assert parse_budget_text("thresholds=0.5,0.25 on_deadline=fail").thresholds == (0.5, 0.25)
    for wrong in ({"gmacs": "much"}, {"max_exit": "1.5"}, {"gmacs": "nan"}, {"thresholds": "1,b"}, {"degrade": "maybe"}):
        with pytest.raises(BudgetError):
            parse_budget_words(wrong)
    with pytest.raises(BudgetError, match="name=value"):
        parse_budget_text("1.2")


def test_without_calibration():
    """F21: the knob is the deepest exit."""
    curve = Curve.uncalibrated(GMACS)
    assert [each.thresholds for each in curve.points] == [(EVERYONE, EVERYONE), (NOBODY, EVERYONE), (NOBODY, NOBODY)]
    assert [applied(curve, level=level).expected_gmacs for level in (0, 0.5, 1)] == list(GMACS)
    assert applied(curve).expected_gmacs == 6.0 and curve.monotone and not curve.calibrated
    with pytest.raises(BudgetError, match="not calibrated"):
        applied(curve, accuracy=0.5)
    unknown = Curve.uncalibrated([None, None])
    for budget in ({"gmacs": 1}, {"max_gmacs": 1}):
        with pytest.raises(BudgetError, match="not known"):
            applied(unknown, **budget)
    assert applied(unknown, max_exit=1).expected_gmacs is None


def test_one_exit():
    curve = Curve.uncalibrated([2.0])
    assert applied(curve, level=0) == applied(curve, level=1) == applied(curve)
    assert applied(curve).thresholds == () and applied(curve).max_exit == 1
    assert decide([0.3], (), 1) == (1, "last")


def test_falling_points_are_left_out():
    """F21: with a note. The others keep the numbers that were measured for them."""
    falling = [point(*POINTS[0]), point(*POINTS[1]), Point((0.9, 0.2), 2.5, 0.95), point(*POINTS[2]), point(*POINTS[3])]
    assert falling[2].thresholds[1] < falling[1].thresholds[1]
    curve, notes = Curve.from_points(falling, GMACS)
    assert curve.monotone and curve.points == CURVE.points
    assert len(notes) == 1 and "1 of 5" in notes[0] and NOTES == []


def test_the_ends_are_always_there():
    curve, _ = Curve.from_points([point(*POINTS[1])], GMACS)
    assert [each.thresholds for each in curve.points] == [(0.0, 0.0), (0.5, 0.3), (NOBODY, NOBODY)]
    assert [each.gmacs for each in curve.points] == pytest.approx([1.0, 1.9, 6.0])


def test_the_default_is_a_position():
    """Where it fits between two points; thresholds from elsewhere stay outside."""
    between, _ = Curve.from_points([point(*each) for each in POINTS], GMACS, Point((0.6, 0.5), 2.5, 0.85))
    assert [each.gmacs for each in between.points] == pytest.approx([1, 1.9, 2.5, 3.1, 6]) and between.monotone
    outside, _ = Curve.from_points([point(*each) for each in POINTS], GMACS, Point((0.9, 0.1), 2.5, 0.85))
    assert outside.points == CURVE.points and outside.apply(Budget()).thresholds == (0.9, 0.1)


def test_stored_points():
    read = read_point({"thresholds": [None, 0.5, None], "gmacs": 1.5, "accuracy": 0.9}, 3, samples=100)
    assert read.thresholds == (-math.inf, 0.5) and read.accuracy_ci == pytest.approx((0.826, 0.945), abs=1e-3)
    with pytest.raises(ValueError, match="4 thresholds"):
        read_point({"thresholds": [0.5] * 4}, 3)


def test_decide():
    assert decide([0.5, 0.8], [0.5, 0.9], 3) == (1, "confident")
    assert decide([0.4, 0.8], [0.5, 0.9], 3) is None
    assert decide([0.4, 0.8, 0.1], [0.5, 0.9], 3) == (3, "last")
    assert decide([0.4, 0.8, 0.1], [0.5, 0.9], 2) == (2, "cap")
    assert decide([0.4, 0.95], [0.5, 0.9], 2) == (2, "confident")
    assert decide([math.nan], [0.0], 2) is None
