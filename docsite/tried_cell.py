"""A cell of the compatibility table: what came of trying something."""

from collections.abc import Callable
from typing import NamedTuple


class Cell(NamedTuple):
    """`mark` is "yes", "no" or a word in between; anything but a plain yes has a reason."""

    mark: str
    reason: str = ""


YES = Cell("yes")


def tried(attempt: Callable[[], Cell | None]) -> Cell:
    """What the attempt returned; if it raised, "no" with the first line of the error."""
    try:
        return attempt() or YES
    except Exception as error:  # whatever it was, it is the reason
        return Cell("no", first_line(error))


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
