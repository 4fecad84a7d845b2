"""One writer per directory: a lock of the operating system, which ends with the process that holds it.

The file `.lock` tells who holds it. By itself it means nothing: one that a killed process left is taken over.
"""

import datetime
import json
import os
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"


class BusyError(ValueError):
    """Another process, or another thread, writes there. The message says which, and since when."""


@contextmanager
def only_writer(directory: str | os.PathLike[str], file: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Inside, no other process is in such a block for this directory; BusyError if one is.

    A block inside a block of the same thread is free: a verb may call another. Forked processes do not hold the lock.

    Args:
        file: the lock, if it cannot stand in the directory, which may not be there yet.
    """
    lock = Path(os.path.realpath(Path(directory) / LOCK if file is None else file))
    if lock in _held and _held[lock][0] == threading.get_ident():
        yield
        return
    descriptor = _taken(lock, Path(directory))
    _held[lock] = (threading.get_ident(), descriptor)
    try:
        yield
    finally:
        del _held[lock]
        if _stands_at(descriptor, lock):
            lock.unlink()  # while it is still locked: who waits for this file notices that it has gone
        os.close(descriptor)


_held: dict[Path, tuple[int, int]] = {}  # lock: (thread, descriptor)


def _taken(lock: Path, directory: Path) -> int:
    """The descriptor of the locked file."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, directory)
            if _stands_at(descriptor, lock):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(_this_process()).encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last holder removed it meanwhile


def _lock(descriptor: int, directory: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not a Unix
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = _who(os.pread(descriptor, 1000, 0))
        raise BusyError(f"{directory} is being written by {who}; wait until it has ended, or stop it") from None
    except OSError as error:
        warnings.warn(f"{directory} cannot be locked ({error.strerror}); write to it with one process at a time", stacklevel=5)


def _this_process() -> dict[str, str | int]:
    now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": now}


def _who(text: bytes) -> str:
    try:
        return "process {pid} on {host} since {since}".format(**json.loads(text))
    except (ValueError, KeyError, TypeError):  # it has not told yet
        return "another process"


def _stands_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _forget() -> None:
    """In a forked process: the lock belongs to its parent, and must not outlive it here."""
    for _, descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
