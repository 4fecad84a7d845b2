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


def test_rsqrt_warmup_is_the_arenas():
    """lr(s) = 0.05 min(1, s / 1000) / sqrt(max(s, 1000)): the largest is 0.05 / sqrt(1000), the sum of 5,000 is 4.70."""
    base = 0.05 / math.sqrt(1000)
    rates = [lr_at(step, 5000, 1000, base, 0.5, "rsqrt_warmup") for step in range(5000)]
    for step, rate in enumerate(rates):
        assert rate == pytest.approx(0.05 * min(1, step / 1000) / math.sqrt(max(step, 1000)), rel=1e-12)
    assert rates[0] == 0 and max(rates) == rates[1000] == pytest.approx(1.58e-3, rel=1e-3)
    assert sum(rates) == pytest.approx(4.70, abs=0.01)
    assert lr_at(4, 10, 0, 1.0, schedule="rsqrt_warmup") == 0.5


def test_steps_are_the_1x_schedule_of_detectors():
    """12 epochs of 100 steps: lr / 1000 at the start, lr after 50 steps, a tenth after epoch 8, a hundredth after epoch 11."""
    rates = [lr_at(step, 1200, 50, 2.0, 0.5, "steps") for step in range(1200)]
    assert rates[0] == pytest.approx(0.002) and rates[25] == pytest.approx(2 * (0.001 + 0.999 / 2))
    assert rates[50:800] == [2.0] * 750
    assert rates[800:1100] == pytest.approx([0.2] * 300) and rates[1100:] == pytest.approx([0.02] * 100)


def test_an_unknown_schedule_is_named():
    with pytest.raises(ValueError, match="unknown optim.schedule 'rsqrt'. Did you mean 'rsqrt_warmup'"):
        lr_at(0, 1, 0, 1.0, schedule="rsqrt")
