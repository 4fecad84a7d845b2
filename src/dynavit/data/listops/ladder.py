"""What an accuracy on ListOps means: the accuracies of readers who look at little.

    majority        the most frequent label
    root operator   the most frequent label of each first token
    k levels        the operators, digits and numbers of arguments of the top k levels exactly, and each list below as a draw
                    from the values that such lists have

Many models stop at the root operator: they have learned to read one token.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sequences import SequenceSplit
from .grammar import CLOSE, DIGITS, FIRST_DIGIT, IDS, OPERATORS, VALUE_OF

Chances = NDArray[np.float64]  # (10,): of each digit

_CERTAIN: NDArray[np.float64] = np.eye(DIGITS)
MOST_LEVELS = 4
LOOKED_AT = 2000  # expressions that readers of levels are tried on


def ladder(split: SequenceSplit) -> list[dict[str, Any]]:
    """Rungs from the bottom, {"name", "accuracy"}, of a split; those of levels on its first expressions."""
    labels = split.labels.numpy()
    roots = split.tokens[split.starts].numpy()
    by_root = sum(int(np.bincount(labels[roots == root]).max()) for root in np.unique(roots))
    rungs = [("majority", int(np.bincount(labels).max()) / len(labels)), ("root operator", by_root / len(labels))]
    shown = range(min(len(split), LOOKED_AT))
    trees = [parse(split[row]) for row in shown]
    below = values_below(trees)
    for levels in range(1, MOST_LEVELS + 1):
        right = sum(guess(tree, levels, below) == labels[row] for row, tree in zip(shown, trees, strict=True))
        rungs.append((f"{levels} level{'s' if levels > 1 else ''}", int(right) / len(trees)))
        if rungs[-1][1] == 1:
            break
    return [{"name": name, "accuracy": accuracy} for name, accuracy in rungs]


class Node:
    """An operator with its arguments, digits or nodes; `value` and `levels` of operators are known when it is closed."""

    __slots__ = ("arguments", "levels", "operator", "value")

    def __init__(self, operator: int) -> None:
        self.operator, self.arguments, self.value, self.levels = operator, list["Node | int"](), -1, 0

    def close(self) -> None:
        self.value = VALUE_OF[self.operator]([each.value if isinstance(each, Node) else each for each in self.arguments])
        self.levels = 1 + max(each.levels if isinstance(each, Node) else 0 for each in self.arguments)


def parse(ids: Sequence[int]) -> Node | int:
    """The tree of a well-formed expression."""
    frames: list[Node] = []
    for token in ids:
        if token in OPERATORS:
            frames.append(Node(token))
            continue
        done: Node | int = token - FIRST_DIGIT
        if token == CLOSE:
            done = frames.pop()
            done.close()
        if not frames:
            return done
        frames[-1].arguments.append(done)
    raise ValueError("the expression has no end")


def values_below(trees: Sequence[Node | int]) -> Chances:
    """How often each digit is the value of a list inside another one."""
    counts = np.zeros(DIGITS)
    stack = [tree for tree in trees if isinstance(tree, Node)]
    while stack:
        for argument in stack.pop().arguments:
            if isinstance(argument, Node):
                counts[argument.value] += 1
                stack.append(argument)
    return counts / counts.sum() if counts.any() else np.full(DIGITS, 1 / DIGITS)


def guess(tree: Node | int, levels: int, below: Chances) -> int:
    """The most probable value for a reader who sees `levels` levels of the tree."""
    return int(chances(tree, levels, below).argmax())


def chances(tree: Node | int, levels: int, below: Chances) -> Chances:
    """The chance of each value for that reader."""
    if isinstance(tree, int):
        return _CERTAIN[tree]
    if not levels:
        return below
    if tree.levels <= levels:  # all of it is seen
        return _CERTAIN[tree.value]
    given = np.stack([chances(argument, levels - 1, below) for argument in tree.arguments])
    return _COMBINED[tree.operator](given)


# ---- The chances of an operator's value from those of its arguments, (n, 10), which are independent


def _smallest(given: Chances) -> Chances:
    return _largest(given[:, ::-1])[::-1]


def _largest(given: Chances) -> Chances:
    at_most = given.cumsum(1).prod(0)
    return np.diff(at_most, prepend=0.0)


def _sum_modulo(given: Chances) -> Chances:
    total = _CERTAIN[0]
    shift = (np.arange(DIGITS)[:, None] - np.arange(DIGITS)) % DIGITS
    for one in given:
        total = one[shift] @ total
    return total


def _median(given: Chances) -> Chances:
    """From the chance that the two values in the middle are at most a and at most b, for all a <= b: how many of the arguments
    are at most a, and how many more at most b, is counted argument by argument."""
    n = len(given)
    low, high = np.triu_indices(DIGITS)  # a, b
    at_most = given.cumsum(1)
    counts = np.zeros((len(low), n + 1, n + 1))  # (pairs, at most a, between a and b)
    counts[:, 0, 0] = 1
    for one in at_most:
        p_low, p_high = one[low, None, None], one[high, None, None]
        moved = counts * (1 - p_high)
        moved[:, 1:] += counts[:, :-1] * p_low
        moved[:, :, 1:] += counts[:, :, :-1] * (p_high - p_low)
        counts = moved
    lower = (n + 1) // 2  # the middle ones are the values number `lower` and `upper` in order, the same if n is odd
    upper = n // 2 + 1
    i, j = np.indices((n + 1, n + 1))
    joint = np.zeros((DIGITS, DIGITS))
    joint[low, high] = counts[:, (i >= lower) & (i + j >= upper)].sum(1)
    # P(first = a, second = b) by differences; below the diagonal P(first <= a, second <= b) = P(second <= b) on it.
    joint = np.triu(joint) + np.tril(np.tile(joint.diagonal(), (DIGITS, 1)), -1)
    exact = np.diff(np.diff(joint, axis=0, prepend=0.0), axis=1, prepend=0.0)
    a, b = np.indices((DIGITS, DIGITS))
    found = np.zeros(DIGITS)
    np.add.at(found, (a + b) // 2, exact)
    return found


_COMBINED = {IDS["[MIN"]: _smallest, IDS["[MAX"]: _largest, IDS["[MED"]: _median, IDS["[SM"]: _sum_modulo}
