"""Which of several values is the best."""

import math

from dynavit.common.metric import Metric

LARGER, SMALLER = Metric("top1", "top-1"), Metric("loss", "loss", better="smaller")


def test_a_value_that_is_not_finite_is_never_the_best():
    for bad in (math.nan, math.inf, -math.inf):
        for values in ({"bad": bad, "low": 1.0, "high": 2.0}, {"low": 1.0, "high": 2.0, "bad": bad}):
            assert (LARGER.best(values), SMALLER.best(values)) == ("high", "low")
        assert LARGER.best({"bad": bad}) == "bad"  # someone has to be
        assert not LARGER.improves(bad, None) and not SMALLER.improves(bad, 1.0)
