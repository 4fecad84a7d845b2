"""Names to things, with the nearest match when a name is unknown."""

import difflib
from collections.abc import Iterable


class UnknownNameError(ValueError):
    """A name nobody registered, or an option nobody takes."""


def nearest_match_error(kind: str, given: str, known: Iterable[str]) -> UnknownNameError:
    """The error for `given`: the nearest known names first, then all of them."""
    names = sorted(set(known))
    close = difflib.get_close_matches(given.lower(), names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    return UnknownNameError(f"unknown {kind} {given!r}.{hint} Known: {', '.join(names)}")
