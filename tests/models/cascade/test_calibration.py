"""Thresholds against plain loops, against all combinations, and against the release's own numbers."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynavit.models.cascade.calibration import Point, released_thresholds, scores, simulate, trade_off
from dynavit.models.cascade.policy import EVERYONE, NOBODY, ExitPolicy, confidence

COST = (0.4677, 1.4461, 3.4550)


def made_up(n, seed=0, exits=3, steps=None):
    """conf (exits, n), correct (exits, n): later exits are right more often, and surer where they are; `steps` makes ties."""
    rng = np.random.default_rng(seed)
    ease = rng.random(n)
    skill = np.linspace(0.5, 1, exits)[:, None]
    correct = rng.random((exits, n)) < 0.2 + 0.8 * ease**0.5 * skill
    conf = np.clip(0.15 + 0.8 * ease * skill + 0.1 * correct + 0.15 * rng.standard_normal((exits, n)), 0.1, 1)
    return (conf if steps is None else np.floor(conf * steps) / steps), correct


# ------------------------------------------------------------------------------------------- the definitions, in loops


def plain_exit(confidences, thresholds):
    for k, threshold in enumerate(thresholds[:-1]):
        if confidences[k] >= threshold:
            return k
    return len(thresholds) - 1


def plain_simulation(conf, correct, cost, thresholds):
    exits, n = conf.shape
    left, right = [0] * exits, 0
    for i in range(n):
        k = plain_exit(conf[:, i], thresholds)
        left[k] += 1
        right += bool(correct[k, i])
    return right / n, sum(number / n * c for number, c in zip(left, cost, strict=True)), [number / n for number in left]


def plain_released(conf, p):
    """One row: count down the images still inside, surest first, until the exit has its share."""
    exits, n = conf.shape
    q = np.float32(p / 20)
    powers = np.array([q ** np.float32(k + 1) for k in range(exits)], np.float32)
    thresholds, gone = [], set()
    for k in range(exits - 1):
        wanted, threshold, counted = math.floor(n * (powers[k] / powers.sum())), 1e8, 0
        for i in sorted(range(n), key=lambda i: -conf[k, i]):
            if i not in gone:
                counted += 1
                if counted == wanted:
                    threshold = conf[k, i]
        thresholds.append(threshold)
        gone |= {i for i in range(n) if conf[k, i] >= threshold}
    return [*thresholds, -1e8]


CASES = {"distinct": made_up(200), "ties": made_up(200, steps=16), "seven": made_up(7), "four exits": made_up(90, exits=4)}


@pytest.mark.parametrize("case", CASES)
def test_released_thresholds_are_those_of_the_loop(case):
    conf, _ = CASES[case]
    found = released_thresholds(conf)
    assert found.shape == (59, len(conf))
    assert found.tolist() == [plain_released(conf, p) for p in range(1, 60)]
    if case == "seven":
        assert (found[:, :-1] == NOBODY).any()  # some shares round to no image at all


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(2, 12), st.integers(0, 999), st.integers(1, 4), st.integers(1, 59))
def test_released_thresholds_of_few_images_with_ties(n, seed, steps, p):
    conf, _ = made_up(n, seed, steps=steps)
    assert released_thresholds(conf, [p]).tolist() == [plain_released(conf, p)]


@pytest.mark.parametrize("case", CASES)
def test_simulation_is_that_of_the_loop(case):
    conf, correct = CASES[case]
    cost = np.linspace(0.5, 4, len(conf))
    rng = np.random.default_rng(1)
    levels = np.concatenate([conf.ravel(), [EVERYONE, NOBODY]])
    thresholds = rng.choice(levels, (40, len(conf)))
    found = simulate(conf, correct, cost, thresholds)
    for i, row in enumerate(thresholds):
        accuracy, mean_cost, shares = plain_simulation(conf, correct, cost, row)
        assert found[i] == Point(tuple(row), pytest.approx(accuracy), pytest.approx(mean_cost), pytest.approx(shares))


def test_simulation_and_policy_agree():
    generator = torch.Generator().manual_seed(0)
    logits = [scale * torch.randn(300, 5, generator=generator) for scale in (1, 2, 3)]
    targets = torch.randint(5, (300,), generator=generator)
    conf, correct = scores([(logits, targets)])
    for row in [*trade_off(conf, correct, COST).thresholds[::40], *released_thresholds(conf)[::10]]:
        policy = ExitPolicy(tuple(row))
        leaves = torch.stack([policy.leaves(exit, k) for k, exit in enumerate(logits)])
        shares = leaves.int().argmax(0).bincount(minlength=3) / 300
        assert simulate(conf, correct, COST, row)[0].shares == pytest.approx(shares.tolist())


@pytest.mark.parametrize("kind", ["max_softmax", "margin", "entropy"])
def test_scores_are_confidence_and_correctness_whatever_the_batches(kind):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 30, 4, generator=generator)
    targets = torch.randint(4, (30,), generator=generator)
    sizes = [7, 1, 22]
    batches = zip(zip(*(exit.split(sizes) for exit in logits), strict=True), targets.split(sizes), strict=True)
    conf, correct = scores(batches, kind)
    assert conf.shape == correct.shape == (2, 30) and conf.dtype == np.float32 and correct.dtype == bool
    for k in range(2):
        np.testing.assert_array_equal(conf[k], confidence(logits[k], kind).numpy())
        assert correct[k].tolist() == [int(row.argmax()) == int(t) for row, t in zip(logits[k], targets, strict=True)]


# ----------------------------------------------------------------------------------------------------- direct budgets


def all_combinations(conf, correct, cost, budgets):
    """The best accuracy within each budget over all thresholds there are, for three exits."""
    per_exit = [np.append(np.unique(row), NOBODY) for row in conf[:-1]]
    curve = simulate(conf, correct, cost, [(*pair, EVERYONE) for pair in itertools.product(*per_exit)])
    return np.array([curve.accuracy[curve.cost <= budget].max() for budget in budgets])


def test_budgets_are_kept_and_little_is_lost_to_the_order():
    """Against all 60^2 combinations: on average less than half a point of accuracy, and never more than two images of 60."""
    budgets = np.linspace(COST[0], COST[-1], 15)
    lost = []
    for seed in range(6):
        conf, correct = made_up(60, seed, steps=50)
        curve = trade_off(conf, correct, COST)
        points = [curve.for_budget(budget) for budget in budgets]
        assert all(point.cost <= budget for point, budget in zip(points, budgets, strict=True))
        lost.append(all_combinations(conf, correct, COST, budgets) - [point.accuracy for point in points])
    assert np.min(lost) >= 0 and np.max(lost) <= 2 / 60 + 1e-9
    assert np.mean(lost) < 0.005


def test_an_exits_cost_buys_at_least_its_accuracy():
    conf, correct = made_up(2000, exits=4)
    cost = (1.0, 2.5, 4.0, 9.0)
    curve = trade_off(conf, correct, cost)
    for k in range(4):
        assert curve.for_budget(cost[k]).accuracy >= correct[k].mean()


def test_differently_calibrated_exits_are_told_apart():
    """Exit 1 says 1.0 whatever it sees, and is right about nothing; exit 2 knows what it knows."""
    rng = np.random.default_rng(0)
    conf = np.stack([np.ones(400), rng.random(400), rng.random(400)])
    correct = np.stack([np.zeros(400, bool), conf[1] > 0.5, np.ones(400, bool)])
    point = trade_off(conf, correct, (1, 2, 10)).for_accuracy(1.0)
    assert point.thresholds[0] == NOBODY and point.thresholds[1] == pytest.approx(0.5, abs=0.01)
    assert point.cost == pytest.approx(np.where(correct[1], 2, 10).mean())


def test_a_useless_exit_in_between_is_passed():
    """Exit 2 is no better than exit 1: what helps is to raise both thresholds at once."""
    rng = np.random.default_rng(0)
    conf = np.tile(rng.random(500), (3, 1))
    correct = np.stack([conf[0] > 0.5, conf[0] > 0.5, np.ones(500, bool)])
    cost = (1.0, 1.5, 2.0)
    curve = trade_off(conf, correct, cost)
    assert curve.for_accuracy(1.0).cost == pytest.approx(np.where(correct[0], 1, 2).mean())
    middle = curve.for_budget(1.25)
    assert middle.shares[1] < 0.01 and middle.accuracy > 0.7


arrays = st.builds(
    made_up,
    st.integers(1, 60),
    st.integers(0, 2**32 - 1),
    st.integers(1, 4),
    st.sampled_from([None, 3, 16]),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(arrays, st.data())
def test_more_budget_never_makes_an_image_leave_earlier(scored, data):
    conf, correct = scored
    cost = np.cumsum(data.draw(st.lists(st.floats(0.01, 10), min_size=len(conf), max_size=len(conf))))
    curve = trade_off(conf, correct, cost)
    every_answer = np.array([curve.for_budget(budget).thresholds for budget in curve.cost])
    assert (every_answer[:-1] <= every_answer[1:]).all()
    assert (curve.thresholds[:-1] <= curve.thresholds[1:]).all()
    budgets = sorted(data.draw(st.lists(st.floats(cost[0], cost[-1]), min_size=2, max_size=5)))
    goals = sorted(data.draw(st.lists(st.floats(0, float(curve.accuracy.max())), min_size=2, max_size=5)))
    unseen = np.random.default_rng(0).random((len(conf), 50))
    for points in ([curve.for_budget(budget) for budget in budgets], [curve.for_accuracy(goal) for goal in goals]):
        for one, more in itertools.pairwise(points):
            assert all(low <= high for low, high in zip(one.thresholds, more.thresholds, strict=True))
            assert one.accuracy <= more.accuracy and one.cost <= more.cost
            for image in np.concatenate([conf, unseen], 1).T:
                assert plain_exit(image, one.thresholds) <= plain_exit(image, more.thresholds)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(arrays)
def test_a_curve_goes_from_the_first_exit_to_the_last_and_tells_the_truth(scored):
    conf, correct = scored
    exits = len(conf)
    cost = np.arange(1.0, exits + 1)
    curve = trade_off(conf, correct, cost)
    assert curve[0].shares == (1, *[0] * (exits - 1)) and curve[0].cost == 1
    assert curve[-1].shares == (*[0] * (exits - 1), 1) and curve[-1].accuracy == correct[-1].mean()
    assert (np.diff(curve.cost) >= 0).all() and (curve.thresholds[:, -1] == EVERYONE).all()
    for i in range(0, len(curve), 7):
        accuracy, mean_cost, shares = plain_simulation(conf, correct, cost, curve.thresholds[i])
        assert curve[i] == Point(
            tuple(curve.thresholds[i]), pytest.approx(accuracy), pytest.approx(mean_cost), pytest.approx(shares)
        )


def test_for_accuracy_is_the_cheapest_and_for_budget_wastes_nothing():
    conf, correct = made_up(500)
    curve = trade_off(conf, correct, COST)
    cheapest = curve.for_accuracy(0.7)
    assert cheapest.accuracy >= 0.7 and (curve.accuracy[curve.cost < cheapest.cost] < 0.7).all()
    unlimited = curve.for_budget(math.inf)
    assert unlimited.accuracy == curve.accuracy.max()
    assert (curve.accuracy[curve.cost < unlimited.cost] < unlimited.accuracy).all()


def test_thresholds_keep_away_from_the_images_they_were_found_on():
    conf, correct = made_up(100, steps=20)
    thresholds = trade_off(conf, correct, COST).thresholds
    for k in range(2):
        inner = thresholds[(thresholds[:, k] > 0) & (thresholds[:, k] < 1), k]
        assert len(inner) and np.abs(inner[:, None] - conf[k]).min() == pytest.approx(0.025)


def test_neighbouring_numbers_are_still_told_apart():
    """Confidences of sure images differ in the last bit, and there is no number halfway."""
    high = np.nextafter(np.float32(1), np.float32(0))
    low = np.nextafter(high, np.float32(0))
    assert (low + high) / 2 == low
    conf = np.array([[low, high, high, low], [1, 1, 1, 1]], np.float32)
    correct = np.array([[False, True, True, False], [True, True, True, True]])
    point = trade_off(conf, correct, (1, 2)).for_accuracy(1.0)
    assert point.shares == (0.5, 0.5)
    assert (torch.tensor(conf[0]) >= point.thresholds[0]).tolist() == [False, True, True, False]


CONF, CORRECT = made_up(10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: trade_off(CONF, CORRECT, COST).for_budget(0.4), "at most 0.4 per image: the least possible is 0.4677"),
        (lambda: trade_off(CONF, CORRECT, COST).for_accuracy(1.1), "reach an accuracy of 1.1 .* the best is [0-9.]+"),
        (lambda: trade_off(CONF, CORRECT, COST[:2]), "3 exits need as many costs"),
        (lambda: trade_off(CONF, CORRECT, (1, 3, 3)), "so increasing; got"),
        (lambda: trade_off(CONF, CORRECT[:, :-1], COST), "got bool, \\(3, 9\\)"),
        (lambda: trade_off(CONF, CORRECT.astype(float), COST), "got float64"),
        (lambda: trade_off(np.where(CONF.max() == CONF, np.nan, CONF), CORRECT, COST), "1 of 30 confidences are NaN"),
        (lambda: simulate(CONF, CORRECT, COST, [(0.5, EVERYONE)]), "rows of 3 thresholds"),
        (lambda: simulate(CONF, CORRECT, COST, [(0.5, math.nan, EVERYONE)]), "none of them NaN"),
        (lambda: released_thresholds(np.full((3, 4), np.nan)), "12 of 12 confidences are NaN"),
        (lambda: released_thresholds(np.zeros((3, 0))), "an array .exits, n."),
        (lambda: scores([]), "no images"),
    ],
)
def test_mistakes_are_explained(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ------------------------------------------------------------------------------------------------------- golden/dvt


@pytest.mark.parametrize("run", ["main", "ties", "tiny"])
def test_the_release_finds_the_same(run, shared_golden):
    arrays = np.load(shared_golden / "dvt" / "threshold.npz")
    golden = json.loads((shared_golden / "dvt" / "threshold.json").read_text())
    expected = golden["runs"][run]
    found = released_thresholds(arrays[f"{expected['find_on']}/conf"], golden["p"])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, arrays[f"{run}/thresholds"])
    on = expected["eval_on"]
    correct = arrays[f"{on}/pred"] == arrays[f"{on}/target"]
    curve = simulate(arrays[f"{on}/conf"], correct, golden["flops"], found)
    np.testing.assert_allclose(100 * curve.accuracy, expected["acc"], rtol=0, atol=1e-13)
    np.testing.assert_allclose(curve.cost, expected["gflops"], rtol=0, atol=3e-7)
    np.testing.assert_array_equal((curve.shares * correct.shape[1]).round(), expected["exit_counts"])
