"""Files that are either the old version or the new one, never half of each.

A run may be killed at any moment and another process may be reading: so we write beside the target, force the bytes to disk,
and only then rename, which the file system does in one step.
"""

import json
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .fits import check_fits


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what was written there takes its place when the block ends without an exception.

    For libraries that want a path: `with replacing("model.safetensors") as temporary: save_file(state, temporary)`.
    Missing directories are made. A link is followed, so that the file behind it changes.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same directory: a rename across file systems would be a copy, and a copy can be interrupted.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with writing(target):
            yield temporary
            force_to_disk(temporary)
            temporary.replace(target)
    except BaseException:  # KeyboardInterrupt too: litter in a run directory outlives the run
        temporary.unlink(missing_ok=True)
        raise
    force_to_disk(target.parent)  # the rename itself is an entry in the directory


@contextmanager
def writing(path: str | os.PathLike[str], *errors: type[Exception]) -> Iterator[None]:
    """Inside, an error of the operating system, such as a disk that is full, names the file.

    `errors` are what a library raises instead when it cannot write.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise
    except errors as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise OSError(
            f"{path} could not be written ({reason}): the disk may be full, or the size of files be limited"
        ) from error


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Indented JSON. NaN and infinity are refused: no other reader of JSON takes them."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | os.PathLike[str], kind: Any = dict[str, Any]) -> Any:
    """The value of a JSON file that fits the hint `kind`, see `common.fits`. ValueError that names the file if it does not.

    NaN and infinity are refused, as `write_json` does; so are numbers of more than 64 bits and what is no regular file.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"{path} is not a regular file")
    try:
        value = json.loads(Path(path).read_bytes(), parse_constant=_refuse, parse_float=_finite, parse_int=_whole)
        check_fits(kind, value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, or not from this version: {error}") from error
    return value


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _whole(text: str) -> float:
    number = int(text)
    return number if abs(number) < 2**63 else _refuse(f"{text[:9]}...")


def with_nulls(value: Any) -> Any:
    """The same with None for NaN and infinity, which JSON cannot write."""
    if isinstance(value, dict):
        return {key: with_nulls(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_nulls(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def force_to_disk(path: Path) -> None:
    """Return when the bytes of a file, or the entries of a directory, would survive a power failure."""
    if path.is_dir() and os.name != "posix":
        return  # directories cannot be opened there
    # Windows syncs only files opened for writing.
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
