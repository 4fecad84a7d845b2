"""ListOps expressions: values against a second way to compute them, text there and back, and what is wrong with wrong ones."""

from random import Random

import pytest

from data.listops.oracle import value_of
from dynavit.data.listops.generate import Distribution, draw
from dynavit.data.listops.grammar import IDS, TOKENS, binary_text, evaluate, text_of, tokenise

NEST = "[MIN 9 " * 9 + "7 " + "] " * 9


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[MED 1 2 ]", 1),
        ("[MED 0 1 9 9 ]", 5),
        ("[MED 5 0 9 ]", 5),
        ("[SM 9 9 ]", 8),
        ("[MAX 4 [MIN 2 3 ] 1 ]", 4),
        ("7", 7),
        (NEST, 7),
    ],
)
def test_values_by_hand(text, value):
    assert evaluate(tokenise(text)) == value == value_of(text)


def test_random_trees_against_the_second_way():
    random = Random(5)
    trees = [draw(random, Distribution(max_depth=6, p_operator=0.5)) for _ in range(400)]
    assert max(len(tree) for tree in trees) > 500
    for tree in trees:
        assert evaluate(tree) == value_of(text_of(tree)) == value_of(binary_text(tree))


def test_text_there_and_back():
    random = Random(6)
    for _ in range(200):
        tree = draw(random, Distribution(max_depth=5, p_operator=0.6))
        text = binary_text(tree)
        assert tokenise(text) == tree == tokenise(text_of(tree))
        assert len(text.split()) == 3 * len(tree) - 2  # with and without parentheses
    assert binary_text(tokenise("[SM 1 [MIN 2 3 ] ]")) == "( ( ( [SM 1 ) ( ( ( [MIN 2 ) 3 ) ] ) ) ] )"


def test_ids_are_these_for_ever():
    """Stored models know them."""
    assert [TOKENS[number] for number in (0, 1, 10, 11, 12, 13, 14, 15)] == [
        "<pad>",
        "0",
        "9",
        "[MIN",
        "[MAX",
        "[MED",
        "[SM",
        "]",
    ]
    assert len(TOKENS) == 17 and sorted(IDS.values()) == list(range(1, 16))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[MAX 4 [AVG 2 3 ] ]", "unknown token '\\[AVG'"),
        ("[MAX 4 12 ]", "unknown token '12'"),
        ("[MAX 4 X", "unknown token 'X'"),
        ("[MAX 4 [MIN 2 3 ]", "\\[MAX is never closed"),
        ("[MAX 4 [MIN 2 3 [SM 1", "3 lists are never closed, the last one is \\[SM"),
        ("[MAX 4 ] ]", "ends at token 3, but there are 4"),
        ("] 4", "the \\] at token 1 closes nothing"),
        ("[MAX [SM ] 4 ]", "\\[SM has no arguments, its \\] is token 3"),
        ("4 5", "ends at token 1, but there are 2"),
        ("", "there is no expression"),
    ],
)
def test_what_is_wrong(text, message):
    with pytest.raises(ValueError, match=message):
        evaluate(tokenise(text))
