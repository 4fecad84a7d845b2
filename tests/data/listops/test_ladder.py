"""Readers who look at little: their accuracies against brute force, and against the numbers that were measured elsewhere."""

import itertools
import statistics
from random import Random

import numpy as np
import pytest

from dynavit.data.listops.generate import Distribution
from dynavit.data.listops.grammar import IDS, evaluate, tokenise
from dynavit.data.listops.ladder import _COMBINED, chances, guess, ladder, parse, values_below
from dynavit.data.listops.open import generate_splits
from dynavit.data.sequences import SequenceSplit

VALUES = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}


@pytest.mark.parametrize("operator", VALUES)
@pytest.mark.parametrize("arguments", [1, 2, 3, 4, 5])
def test_chances_of_a_value_by_enumeration(operator, arguments):
    """Arguments that take three digits each, of chances of their own."""
    numbers = np.random.default_rng(arguments)
    given = np.zeros((arguments, 10))
    for row in given:
        row[numbers.choice(10, 3, replace=False)] = numbers.dirichlet([1, 1, 1])
    expected = np.zeros(10)
    for values in itertools.product(*(row.nonzero()[0] for row in given)):
        expected[VALUES[operator](values)] += np.prod([row[value] for row, value in zip(given, values, strict=True)])
    np.testing.assert_allclose(_COMBINED[IDS[operator]](given), expected, atol=1e-12)


def test_levels_are_seen_or_guessed():
    tree = parse(tokenise("[MAX 3 [MIN 5 7 ] [SM 9 [MED 1 2 ] ] ]"))
    below = np.zeros(10)
    below[[2, 8]] = 0.3, 0.7
    np.testing.assert_allclose(chances(tree, 1, below)[[3, 8]], [0.3 * 0.3, 1 - 0.3 * 0.3])  # 3 only if both lists are 2
    assert guess(tree, 1, below) == 8
    # The second level: MIN is 5; SM of 9 and a list is 1 or 7, so the largest is 5 or 7.
    np.testing.assert_allclose(chances(tree, 2, below)[[5, 7]], [0.3, 0.7])
    assert guess(tree, 3, below) == evaluate(tokenise("[MAX 3 [MIN 5 7 ] [SM 9 [MED 1 2 ] ] ]")) == 5
    np.testing.assert_allclose(values_below([tree]), np.bincount([5, 0, 1], minlength=10) / 3)


@pytest.mark.parametrize(
    ("distribution", "majority", "root"),
    [
        pytest.param(Distribution(), 0.173, 0.370, id="short"),
        pytest.param(Distribution(500, 2000, 10), 0.172, 0.362, id="arena", marks=pytest.mark.slow),
    ],
)
def test_the_first_rungs_are_where_they_were_measured(distribution, majority, root):
    """Of 16,000 trees made by another program, standard error 0.4 points; ours 5,000, or 1,500 long ones."""
    count = 5000 if distribution.max_length == 200 else 1500
    rows = generate_splits({"train": count, "val": 0, "test": 0}, distribution)["train"]
    labels, roots = rows.labels.numpy(), rows.tokens[rows.starts].numpy()
    own = np.bincount(labels).max() / count, sum(np.bincount(labels[roots == r]).max() for r in set(roots)) / count
    for found, known in zip(own, (majority, root), strict=True):
        assert abs(found - known) < 3 * (known * (1 - known) * (1 / count + 1 / 16000)) ** 0.5


def test_rungs_rise_to_the_top():
    rows = generate_splits({"train": 600, "val": 0, "test": 0}, Distribution(20, 80, 4))["train"]
    found = ladder(rows)
    assert [rung["name"] for rung in found] == ["majority", "root operator", "1 level", "2 levels", "3 levels"]
    accuracies = [rung["accuracy"] for rung in found]
    assert accuracies == sorted(accuracies) and accuracies[-1] == 1  # three levels of operators are all there are
    assert accuracies[2] > accuracies[1] + 0.05


def test_a_row_may_be_a_single_digit():
    random = Random(1)
    digits = [random.randrange(10) for _ in range(50)]
    rows = SequenceSplit.of([bytes([1 + digit]) for digit in digits], digits)
    assert ladder(rows)[1:] == [{"name": "root operator", "accuracy": 1.0}, {"name": "1 level", "accuracy": 1.0}]
