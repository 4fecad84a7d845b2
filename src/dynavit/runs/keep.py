"""Results that cannot be stored are told, not thrown away: another process may be writing into the run, or nobody may."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from ..common.lock import BusyError
from .directory import AnyDirectory

T = TypeVar("T")


class NotStoredError(OSError):
    """The work is done and its results are told; they are not in the run's directory, and the message says why."""


class Keeper:
    """Writes results into a run as its only writer. `problem` says why it cannot, and then nothing is written."""

    def __init__(self, run: AnyDirectory) -> None:
        self.run = run
        self.problem: str | None = None

    def keep(self, write: Callable[[], T]) -> T | None:
        """What `write` returns; None if it could not write."""
        if self.problem is not None:
            return None
        try:
            return write()
        except OSError as error:
            self.problem = f"{self.run.path}: the results are not stored ({error})"
            return None


@contextmanager
def keeping(run: AnyDirectory, *, main: bool = True) -> Iterator[Keeper]:
    """Inside, this process is the only one that writes into the run, or the keeper has a problem. `main`: of several
    processes, the one that writes."""
    keeper = Keeper(run)
    with ExitStack() as lock:
        try:
            lock.enter_context(run.alone(main=main))
        except BusyError as error:
            keeper.problem = f"the results are not stored: {error}"
        except OSError as error:
            keeper.problem = f"{run.path}: the results are not stored ({error})"
        yield keeper
