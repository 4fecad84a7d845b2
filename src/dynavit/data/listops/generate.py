"""Random ListOps expressions from the distribution of the Long Range Arena. Tay et al. 2020, arXiv 2011.04006, section 2.1.

A node above `max_depth` is an operator with probability `p_operator`, else a digit; an operator has 2 to `max_args` arguments,
equally often. Only trees of a wanted length are kept, and each only once. The arena's own files cannot be made again, since
nothing there was seeded: this is their distribution.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from .grammar import CLOSE, DIGITS, FIRST_DIGIT, FIRST_OPERATOR, OPERATORS

VERSION = 1  # of the numbers that a seed gives
PATIENCE = 200_000  # trees in a row that do not fit, before we say so


@dataclass(frozen=True)
class Distribution:
    """The trees that are kept. The defaults are "short ListOps": its majority class and root operator tell as much as those of
    the arena's (lengths 500 to 2000, depth 10), in a tenth of the length.

    Attributes:
        min_length, max_length: tokens without parentheses lie strictly between them.
        max_depth: of nested nodes; operators are nested one less.
        max_args: most arguments of an operator.
        p_operator: probability that a node is an operator.
        seed: of all trees.
    """

    min_length: int = 50
    max_length: int = 200
    max_depth: int = 5
    max_args: int = 10
    p_operator: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        if self.min_length < 0 or self.max_length < self.min_length + 2:
            raise ValueError(
                f"lengths lie strictly between min_length and max_length, got {self.min_length} and {self.max_length}"
            )
        if self.max_depth < 1 or self.max_args < 2 or not 0 <= self.p_operator <= 1:
            raise ValueError(
                f"max_depth is at least 1, max_args at least 2 and p_operator a probability; got {self.max_depth}, "
                f"{self.max_args}, {self.p_operator}"
            )

    def describe(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


class TooLong(Exception):
    """A tree has outgrown the limit; the rest of it need not be drawn."""


def draw(random: Random, distribution: Distribution, limit: int | None = None) -> list[int]:
    """The tokens of one tree, whatever its length; `TooLong` as soon as it has `limit` tokens."""
    uniform, tokens = random.random, list[int]()
    max_depth, p_operator, numbers = distribution.max_depth, distribution.p_operator, distribution.max_args - 1

    def node(depth: int) -> None:
        if depth >= max_depth or uniform() > p_operator:
            tokens.append(FIRST_DIGIT + int(DIGITS * uniform()))
            return
        place = len(tokens)
        tokens.append(CLOSE)  # the operator is drawn after its arguments
        for _ in range(2 + int(numbers * uniform())):
            node(depth + 1)
        tokens[place] = FIRST_OPERATOR + int(len(OPERATORS) * uniform())
        tokens.append(CLOSE)
        if limit is not None and len(tokens) >= limit:
            raise TooLong

    node(1)
    return tokens


def generate(count: int, distribution: Distribution) -> Iterator[bytes]:
    """`count` different trees, a byte for each token, in the order in which the seed gives them.

    Fewer trees are the beginning of more. Nothing here iterates over a set, whose order is another in every process.
    """
    random, seen, patience = Random(distribution.seed), set[bytes](), PATIENCE
    while len(seen) < count:
        try:
            tree = bytes(draw(random, distribution, distribution.max_length))
        except TooLong:
            tree = b""
        if len(tree) > distribution.min_length and tree not in seen:
            seen.add(tree)
            patience = PATIENCE
            yield tree
            continue
        patience -= 1
        if not patience:
            raise ValueError(
                f"{PATIENCE:,} trees in a row were of other lengths or known already, after {len(seen)} of {count}: "
                f"{distribution} allows too few"
            )
