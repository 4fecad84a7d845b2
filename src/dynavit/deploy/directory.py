"""A directory that is either all there or not there at all, and has one writer at a time."""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..common.files import force_to_disk
from ..common.lock import LOCK, only_writer
from ..common.owned import Names, foreign_files, in_words

OwnNames = Callable[[Path], Names | None]


@contextmanager
def new_directory(path: Path, *, ours: OwnNames, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary directory beside `path`; it takes its place when the block ends without an exception.

    An existing directory is refused, unless `overwrite` is given and all that it holds is ours. It is deleted when the new one
    is complete. A link is followed, so that the directory behind it changes. The next call with the same path removes what a
    killed one left; a call while another one is under way, or while something is being written into the directory, is refused.

    Args:
        ours: the names of our files in a directory; None if it is nothing of ours.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        locks.enter_context(only_writer(path, path.with_name(f".{path.name}{LOCK}")))
        _clear_up(path)
        _check_free(path, ours, overwrite)
        if path.is_dir():
            locks.enter_context(only_writer(path))
        temporary = _temporary(path)
        temporary.mkdir()
        try:
            yield temporary
            for entry in [*temporary.rglob("*"), temporary]:
                force_to_disk(entry)
            _check_free(path, ours, overwrite)  # again: exporting takes a while
            _take_place(temporary, path)
        except BaseException:  # KeyboardInterrupt too
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def _take_place(new: Path, path: Path) -> None:
    """A directory cannot be renamed onto one that holds files, so the old one is set aside first.

    Between the two renames nothing is at `path`. A process that is killed there leaves the old directory to `_clear_up`.
    """
    aside = _aside(path)
    try:
        if path.exists():
            path.rename(aside)
        new.rename(path)
    except BaseException:
        _put_back(aside, path)
        raise
    force_to_disk(path.parent)
    _remove(aside, path)


def _clear_up(path: Path) -> None:
    _put_back(_aside(path), path)
    _remove(_aside(path), path)
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.tmp")
    for entry in path.parent.iterdir() if path.parent.is_dir() else ():
        if ours.fullmatch(entry.name) and entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)


def _put_back(aside: Path, path: Path) -> None:
    if aside.exists() and not path.exists():
        aside.rename(path)


def _remove(aside: Path, path: Path) -> None:
    if aside.exists():
        # Renamed first: under its old name `_put_back` would restore it, even half deleted.
        shutil.rmtree(aside.rename(_temporary(path)), ignore_errors=True)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def _check_free(path: Path, ours: OwnNames, overwrite: bool) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"{path} is a file; choose another folder")
    if all(entry.name == LOCK for entry in path.iterdir()):
        return
    if not overwrite:
        raise ValueError(
            f"{path} exists and is not empty; choose another folder, or overwrite it (--overwrite, overwrite=True)"
        )
    names = ours(path)
    if names is None:
        raise ValueError(f"{path} holds something else, so it is not overwritten; choose another folder, or remove it yourself")
    if foreign := foreign_files(path, names):
        raise ValueError(f"{path} also holds {in_words(foreign)}, so it is not overwritten; move that elsewhere first")
