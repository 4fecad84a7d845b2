"""Generated trees: the same everywhere, different from each other, of the lengths and chances that were asked for."""

import os
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from random import Random

import pytest

from data.listops.oracle import depth, nested
from dynavit.data.listops.generate import Distribution, TooLong, draw, generate
from dynavit.data.listops.grammar import OPERATORS, text_of
from dynavit.data.listops.open import generate_splits

SHORT = Distribution()
KNOWN = "fd107d10316f5179"  # the first bytes of 200 short trees of seed 0


def digest(trees):
    return sha256(b"\0".join(trees)).hexdigest()


def splits(**sizes):
    return generate_splits({"test": 0, "val": 0, "train": 1, **sizes}, SHORT)


def test_the_same_in_every_process():
    """A set's order depends on PYTHONHASHSEED, trees do not."""
    program = (
        "from hashlib import sha256; from dynavit.data.listops.generate import *; "
        "print(sha256(b'\\0'.join(generate(200, Distribution()))).hexdigest())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert printed == {digest(generate(200, SHORT))}
    assert digest(generate(200, SHORT)) != digest(generate(200, Distribution(seed=1)))


def test_the_numbers_of_a_seed_do_not_change():
    """A new version of the generator gets a new VERSION, which manifests hold."""
    assert digest(generate(200, SHORT)).startswith(KNOWN)


def test_splits_share_nothing_and_test_does_not_depend_on_train():
    small, large = splits(test=30, val=20, train=10), splits(test=30, val=20, train=200)
    for name in ("test", "val"):
        assert [small[name][row] for row in range(20)] == [large[name][row] for row in range(20)]
    assert [small["train"][row] for row in range(10)] == [large["train"][row] for row in range(10)]
    rows = [split[row] for split in large.values() for row in range(len(split))]
    assert len(rows) == len(set(rows)) == 250


def test_lengths_and_depths_are_strictly_inside():
    trees = list(generate(300, Distribution(20, 40, 4)))
    assert {len(tree) for tree in trees} == set(range(21, 40))
    assert max(depth(nested(text_of(tree).split())) for tree in trees) == 3


def test_duplicates_are_left_out_and_exhaustion_is_said(monkeypatch):
    """Between 3 and 5 tokens there are 4 operators with 2 digits each, 400 trees."""
    monkeypatch.setattr("dynavit.data.listops.generate.PATIENCE", 40_000)
    few = Distribution(3, 5, 2)
    assert len(set(generate(400, few))) == 400
    with pytest.raises(ValueError, match="after 400 of 401: .*max_length=5.* allows too few"):
        list(generate(401, few))


def test_the_chances_of_unfiltered_trees():
    """Operators at a quarter of the nodes that may be one, 2 to 10 arguments and four operators equally often: chi-square."""
    random, counts, arities, operators = Random(0), Counter(), Counter(), Counter()

    def count(tree, level=1):
        if level < 6:
            counts[isinstance(tree, list)] += 1
        if isinstance(tree, list):
            operators[tree[0]] += 1
            arities[len(tree) - 1] += 1
            for argument in tree[1:]:
                count(argument, level + 1)

    digits = Counter()
    for _ in range(3000):
        words = text_of(draw(random, Distribution(max_depth=6))).split()
        digits.update(word for word in words if word.isdigit())
        count(nested(words))
    assert chi_square(counts, {True: 0.25, False: 0.75}) < 10.8  # 0.1 % for 1, 8, 3 and 9 degrees of freedom
    assert chi_square(arities, dict.fromkeys(range(2, 11), 1 / 9)) < 26.1
    assert chi_square(operators, dict.fromkeys(("[MIN", "[MAX", "[MED", "[SM"), 1 / 4)) < 16.3
    assert chi_square(digits, dict.fromkeys("0123456789", 1 / 10)) < 27.9


def chi_square(counts, chances):
    assert counts.keys() == chances.keys()
    total = sum(counts.values())
    assert total > 500
    return sum((counts[key] - total * chance) ** 2 / (total * chance) for key, chance in chances.items())


def test_a_tree_that_outgrows_the_limit_is_given_up():
    with pytest.raises(TooLong):
        draw(Random(0), Distribution(max_depth=10, p_operator=1.0), limit=100)
    assert all(token in OPERATORS for token in (tree[0] for tree in generate(20, SHORT)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_length": 10, "max_length": 11}, "strictly between"),
        ({"max_args": 1}, "max_args at least 2"),
        ({"p_operator": 1.5}, "p_operator a probability"),
    ],
)
def test_wrong_distributions(options, message):
    with pytest.raises(ValueError, match=message):
        Distribution(**options)


@pytest.mark.parametrize(
    "changed", [{"min_length": 60}, {"max_length": 150}, {"max_depth": 4}, {"max_args": 6}, {"p_operator": 0.3}, {"seed": 1}]
)
def test_every_option_changes_something(changed):
    assert digest(generate(20, Distribution(**changed))) != digest(generate(20, SHORT))
