"""ListOps expressions: tokens, text and value. Nangia & Bowman 2018, arXiv 1804.06028.

    expression := digit | operator expression ... expression ]        operator := [MIN | [MAX | [MED | [SM

MIN and MAX are those of the arguments, SM is their sum modulo 10, MED their median, of an even number of arguments the mean of
the two in the middle without its fraction. So every value is a digit.

Ids are part of the definition: a model that was trained with others would read permuted tokens. 0 is padding.
"""

from collections.abc import Callable, Sequence

PADDING = 0
TOKENS = ("<pad>", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]", "<reserved>")
IDS = {token: number for number, token in enumerate(TOKENS[1:-1], start=1)}
FIRST_DIGIT, FIRST_OPERATOR, CLOSE = IDS["0"], IDS["[MIN"], IDS["]"]
OPERATORS = range(FIRST_OPERATOR, CLOSE)
DIGITS = 10

_PARENTHESES = ("(", ")")  # of the binary tree that files spell out; they carry nothing


def median(values: Sequence[int]) -> int:
    """
    >>> median([0, 1, 9, 9]), median([1, 2]), median([7, 3, 5])
    (5, 1, 5)
    """
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


def sum_modulo(values: Sequence[int]) -> int:
    return sum(values) % DIGITS


VALUE_OF: dict[int, Callable[[Sequence[int]], int]] = {
    IDS["[MIN"]: min,
    IDS["[MAX"]: max,
    IDS["[MED"]: median,
    IDS["[SM"]: sum_modulo,
}


def tokenise(text: str) -> list[int]:
    """Ids of an expression, without the parentheses that files have; ValueError names a token that does not exist.

    >>> tokenise("( ( ( [MAX 4 ) 2 ) ] )")
    [12, 5, 3, 15]
    """
    words = [word for word in text.split() if word not in _PARENTHESES]
    try:
        return [IDS[word] for word in words]
    except KeyError as unknown:
        raise ValueError(
            f"unknown token {shown(unknown.args[0])}; there are {' '.join(IDS)}, and parentheses, which are ignored"
        ) from None


def shown(word: str) -> str:
    """A wrong word for a message; a whole expression in its place is cut short.

    >>> shown("[AVG"), shown("( ( ( [MAX 1 ) 2 ) ] )")
    ("'[AVG'", "'( ( ( [MAX 1'...")
    """
    return repr(word) if len(word) <= 12 else f"{word[:12]!r}..."


def text_of(ids: Sequence[int]) -> str:
    """The expression in words, without parentheses."""
    return " ".join(TOKENS[token] for token in ids)


def binary_text(ids: Sequence[int]) -> str:
    """The expression as files spell it: a binary tree, nested to the left, n + 1 pairs of parentheses for n arguments.

    >>> binary_text(tokenise("[MAX 1 2 3 ]"))
    '( ( ( ( [MAX 1 ) 2 ) 3 ) ] )'
    """
    arguments, words, open_operators = _numbers_of_arguments(ids), list[str](), 0
    for place, token in enumerate(ids):
        if token in OPERATORS:
            words += ["("] * (arguments[place] + 1)
            open_operators += 1
        words.append(TOKENS[token])
        if token == CLOSE:
            words.append(")")
            open_operators -= 1
        if token not in OPERATORS and open_operators:  # an argument is complete, a digit or a closed list
            words.append(")")
    return " ".join(words)


def _numbers_of_arguments(ids: Sequence[int]) -> dict[int, int]:
    """Place of each operator: how many arguments it has."""
    found, stack = dict[int, int](), list[int]()
    for place, token in enumerate(ids):
        if token == CLOSE:
            stack.pop()
        if token in OPERATORS:
            found[place] = 0
            stack.append(place)
        elif stack:
            found[stack[-1]] += 1
    return found


def evaluate(ids: Sequence[int]) -> int:
    """The value of an expression, a digit; ValueError says what is wrong with one that has none.

    >>> evaluate(tokenise("[MAX 4 [MIN 2 3 ] 1 [SM 9 9 ] ]"))
    8
    """
    frames: list[tuple[int, list[int]]] = []
    for place, token in enumerate(ids, start=1):
        if token in OPERATORS:
            frames.append((token, []))
            continue
        if token == CLOSE:
            if not frames:
                raise ValueError(f"the ] at token {place} closes nothing")
            operator, arguments = frames.pop()
            if not arguments:
                raise ValueError(f"{TOKENS[operator]} has no arguments, its ] is token {place}")
            value = VALUE_OF[operator](arguments)
        else:
            value = token - FIRST_DIGIT
        if frames:
            frames[-1][1].append(value)
        elif place < len(ids):
            raise ValueError(f"the expression ends at token {place}, but there are {len(ids)}")
        else:
            return value
    if not frames:
        raise ValueError("there is no expression")
    left = TOKENS[frames[-1][0]]
    raise ValueError(
        f"{left} is never closed" if len(frames) == 1 else f"{len(frames)} lists are never closed, the last one is {left}"
    )
