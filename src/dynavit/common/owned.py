"""Deleting what we wrote and nothing else: our files are known by their names, and foreign ones among them are found first."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from .lock import LOCK

LEFT_OVER = r"\.(?:[^/]+\.)?[0-9a-f]+\.tmp"  # of a file whose writing was interrupted, see `common.files`

Names = re.Pattern[str]


def names(*patterns: str) -> Names:
    """One pattern for paths relative to the directory, with slashes; a directory ends with one.

    Its lock, and remains of interrupted writing, belong to every directory of ours.
    """
    return re.compile("|".join(f"(?:{pattern})" for pattern in (re.escape(LOCK), LEFT_OVER, *patterns)))


def foreign_files(directory: Path, ours: Names) -> list[str]:
    """Paths in the directory, at any depth, whose names are not ours. Links are not followed."""
    return sorted(name for name, _ in _entries(directory) if not ours.fullmatch(name))


def remove_ours(directory: Path, ours: Names, last: Path | None = None) -> None:
    """Delete the files that are ours, `last` after all others, and then the directories that are empty; the top one stays.

    Of a link the link is deleted, not what it points to. The lock stays: who deletes it would let another writer in.
    """
    found = [(name, path) for name, path in _entries(directory) if ours.fullmatch(name) and name != LOCK]
    for _, path in sorted(found, key=lambda entry: entry[1] == last):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
    for _, path in reversed(found):  # what is inside comes after what it is inside of
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def in_words(found: list[str]) -> str:
    """Some of the names, and how many more there are."""
    shown = ", ".join(map(repr, found[:3]))
    return shown if len(found) <= 3 else f"{shown} and {len(found) - 3} more"


def _entries(directory: Path) -> Iterator[tuple[str, Path]]:
    """(relative path, path), directories before what is in them."""
    for parent, directories, files in os.walk(directory):
        here = Path(parent)
        for name in sorted(directories) + sorted(files):
            path = here / name
            ending = "/" if name in directories else ""
            yield path.relative_to(directory).as_posix() + ending, path
