"""Costs of steps: the fit, what is profitable, and following a machine that changes."""

import math

import numpy as np
import pytest

from dynavit.deploy.serve.costs import Costs, Line, measure
from dynavit.deploy.serve.forecast import Forecast


def test_fit_is_least_squares():
    points = [(1, 5.1), (2, 6.8), (4, 11.3), (8, 18.9)]
    each, fixed = np.polyfit(*zip(*points, strict=True), 1)
    line = Costs.fitted([points]).lines[0]
    assert (line.fixed, line.each) == pytest.approx((fixed, each))


@pytest.mark.parametrize("points", [[(1, 5.0), (2, 4.0), (4, 3.0)], [(1, 1.0), (2, 4.0), (4, 9.0)], [(1, 2.0)]])
def test_neither_part_is_negative(points):
    """Noise must not make batches free, nor launches pay."""
    line = Costs.fitted([points]).lines[0]
    assert line.fixed >= 0 and line.each > 0
    mean = sum(seconds for _, seconds in points) / len(points)
    assert line(1) <= 2 * mean * max(batch for batch, _ in points)


@pytest.mark.parametrize(
    ("fixed", "each", "most"), [(3.8, 7.5, 8), (4.7, 16.9, 8), (3.0, 34.4, 8), (2.0, 0.1, 32), (0.0, 1.0, 8)]
)
def test_profitable(fixed, each, most):
    """b* = min(B, ceil(a / (epsilon c))): 6, 3, 1 with the costs of a CPU, B on accelerators."""
    wanted = min(most, max(1, math.ceil(fixed / (0.1 * each))))
    assert Costs([Line(fixed, each)]).profitable(1, most, 0.1) == wanted


def test_follows_the_machine():
    costs = Costs([Line(1.0, 1.0)])
    for step in range(400):
        batch = 1 + step % 8
        costs.observe(1, batch, 3.0 + 2.0 * batch)
    assert (costs.lines[0].fixed, costs.lines[0].each) == pytest.approx((3.0, 2.0), rel=0.02)


def test_one_size_keeps_the_form():
    costs = Costs([Line(1.0, 1.0)])
    for _ in range(1000):
        costs.observe(1, 4, 10.0)
    assert costs(1, 4) == pytest.approx(10.0, rel=0.01)
    assert costs.lines[0].fixed == pytest.approx(costs.lines[0].each)


def test_one_busy_moment_does_not_spoil_it():
    costs = Costs([Line(1.0, 1.0)])
    costs.observe(1, 1, 1000.0)
    assert costs(1, 1) == pytest.approx(2.0 * (1 + 0.02 * 3))


class Stepping:
    """Each step takes 2 k + batch of a clock that only it moves."""

    def __init__(self):
        self.now, self.batches = 0.0, []

    def begin(self, entries):
        return 1, len(entries)

    def step(self, state):
        exit, batch = state
        self.now += 2 * exit + batch
        self.batches.append(batch)
        return None, (exit + 1, batch)


def test_measure():
    model = Stepping()
    points, limits = measure(model, 0, [8, 2], clock=lambda: model.now, longest=99)
    assert limits == [8, 2]
    assert points == [[(1, 3.0), (2, 4.0), (4, 6.0), (8, 10.0)], [(1, 5.0), (2, 6.0)]]
    lines = Costs.fitted(points).lines
    assert [part for line in lines for part in (line.fixed, line.each)] == pytest.approx([2.0, 1.0, 4.0, 1.0])
    model = Stepping()
    points, limits = measure(model, 0, [32, 32], clock=lambda: model.now, longest=7.5)
    assert [len(found) for found in points] == [3, 3] and limits == [32, 32]
    assert max(model.batches) == 4  # the step of 8 seconds was the last


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")])
def test_batches_that_do_not_fit_into_memory_are_not_made(error):
    class Small(Stepping):
        def begin(self, entries):
            if len(entries) > 5:
                raise error
            return super().begin(entries)

    model = Small()
    points, limits = measure(model, 0, [32, 2], clock=lambda: model.now, longest=99)
    assert [size for size, _ in points[0]] == [1, 2, 4] and limits == [4, 2]


def test_other_errors_are_not_taken_for_that():
    class Broken(Stepping):
        def step(self, state):
            raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        measure(Broken(), 0, [4])


def test_forecast():
    """rho_k = s_k / b + (1 - p_k) rho_{k+1}, and shares are learnt."""
    forecast, costs = Forecast(3, [0.6, 0.25, 0.15]), Costs([Line(4.0, 1.0), Line(3.0, 2.0), Line(1.0, 5.0)])
    assert forecast.leaving == pytest.approx([0.6, 0.625, 1.0])
    per_image = [6 / 2, 7 / 2, 11 / 2]
    work = [per_image[0] + 0.4 * per_image[1] + 0.15 * per_image[2], per_image[1] + 0.375 * per_image[2], per_image[2]]
    assert forecast.work(costs, [2, 2, 2]) == pytest.approx(work)
    for _ in range(3000):
        forecast.saw(1, False)
    assert forecast.leaving[0] < 0.01
    assert Forecast(2, [1.0, 0.0]).leaving == [1.0, 1.0]
