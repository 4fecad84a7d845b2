"""A directory that is either all there or not there at all."""

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..common.files import force_to_disk


@contextmanager
def new_directory(path: Path, *, replaceable: Callable[[Path], bool], overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary directory beside `path`; it takes its place when the block ends without an exception.

    An existing directory is refused, unless `overwrite` is given and `replaceable` knows it as ours.
    """
    _check_free(path, replaceable, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        for entry in [*temporary.rglob("*"), temporary]:
            force_to_disk(entry)
        _check_free(path, replaceable, overwrite)  # again: exporting takes a while
        old = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        if path.exists():  # a directory cannot be renamed onto one that holds files
            path.rename(old)
        temporary.rename(path)
        force_to_disk(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:  # KeyboardInterrupt too
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _check_free(path: Path, replaceable: Callable[[Path], bool], overwrite: bool) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"{path} is a file; choose another --out")
    if not any(path.iterdir()):
        return
    if not overwrite:
        raise ValueError(f"{path} exists and is not empty; choose another --out, or --overwrite it")
    if not replaceable(path):
        raise ValueError(f"{path} holds something else, so it is not overwritten; choose another --out, or remove it yourself")
