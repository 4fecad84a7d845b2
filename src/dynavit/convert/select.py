"""`where=`: the choice of norms to swap."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from ..common.registry import nearest_match_error
from .plan import SwapRow

Where = str | list[str] | range | dict[str, Any] | Callable[[SwapRow], bool]
KEYS = ("pattern", "depth", "site")
SITES = ("attn", "mlp", "other", "linear_bn")


def selector(where: Where, rows: list[SwapRow]) -> Callable[[SwapRow], bool]:
    """A test of rows.

    Name patterns, functions and the sites "other" and "linear_bn" reach norms that would be kept; a depth, or the sites "attn"
    and "mlp", only narrow what would be swapped anyway.
    """
    if isinstance(where, str) or (isinstance(where, list | tuple) and all(isinstance(each, str) for each in where)):
        where = {"pattern": where}
    elif isinstance(where, range):
        where = {"depth": where}
    if callable(where):
        return where
    if not isinstance(where, dict):
        raise ValueError(
            "where= is a name pattern ('blocks.*.norm1'), a list of them, a range of block indices, a function of a row, or a "
            f"dict of {', '.join(KEYS)}; got {where!r}"
        )
    for key in where:
        if key not in KEYS:
            raise nearest_match_error("key of where=", key, KEYS)
    patterns, depth, site = where.get("pattern"), where.get("depth"), where.get("site")
    patterns = [patterns] if isinstance(patterns, str) else patterns
    for pattern in patterns or ():
        if not any(fnmatchcase(row.path, pattern) for row in rows):
            raise nearest_match_error("norm", pattern, [row.path for row in rows])
    sites = [site] if isinstance(site, str) else site
    for each in sites or ():
        if each not in SITES:
            raise nearest_match_error("site", each, SITES)
    usual = patterns is None and not any(each in ("other", "linear_bn") for each in sites or ())

    def chosen(row: SwapRow) -> bool:
        return (
            (not usual or row.action == "swap")
            and (patterns is None or any(fnmatchcase(row.path, pattern) for pattern in patterns))
            and (depth is None or (row.depth is not None and _in(depth, row.depth)))
            and (sites is None or row.site in sites)
        )

    return chosen


def _in(depth: Any, index: int) -> bool:
    if callable(depth):
        return bool(depth(index))
    if isinstance(depth, int):
        return index == depth
    if isinstance(depth, tuple) or (isinstance(depth, list) and len(depth) == 2):
        if len(depth) != 2:
            raise ValueError(f"where={{'depth': ...}} is (first, last), a range, an index or a function; got {depth!r}")
        return bool(depth[0] <= index <= depth[1])
    return index in depth
