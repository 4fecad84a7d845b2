"""The learning rate against its formula."""

import math

import pytest

from dynavit.engine.schedule import lr_at


def test_rise_then_cosine():
    total, warmup, base, least = 100, 10, 2e-3, 0.05
    for step in range(total):
        if step < 10:
            expected = base * (step + 1) / 10
        else:
            expected = base * least + base * (1 - least) * (1 + math.cos(math.pi * (step - 10) / 90)) / 2
        assert lr_at(step, total, warmup, base, least) == pytest.approx(expected, rel=1e-12)


def test_the_rate_rises_then_falls_and_stays_above_the_minimum():
    rates = [lr_at(step, 50, 8, 1.0, 0.1) for step in range(50)]
    top = rates.index(max(rates))
    assert top in (7, 8)
    assert rates[: top + 1] == sorted(rates[: top + 1]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert min(rates[8:]) > 0.1 and rates[0] > 0


def test_no_warmup_and_a_single_step():
    assert lr_at(0, 1, 0, 3.0, 0.5) == 3.0
    assert lr_at(0, 4, 0, 1.0) == 1.0
