"""The one thread that owns the model: joins waiting states into a batch, runs one exit, keeps what comes out.

It decides nothing. A piece of work says which jobs run next and which of the last batch go on; the others' states are dropped.
States belong to this thread alone, so that they are never copied to another one and memory is freed where it was made.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .jobs import named

IDLE = 0.5  # seconds between two signs of life while nothing is to be done


class Steps(Protocol):
    """The part of `model.ServedModel` that is used here."""

    def begin(self, entries: Sequence[Any]) -> Any: ...

    def step(self, state: Any) -> tuple[NDArray[np.floating], Any]: ...

    def join(self, states: Sequence[Any]) -> Any: ...

    def confidence(self, probabilities: NDArray[np.floating]) -> NDArray[np.floating]: ...


@dataclass(frozen=True)
class Work:
    """A batch for one exit.

    Attributes:
        jobs: in the order of the results.
        entries: images of jobs that begin.
        kept: jobs of the batch before that go on.
        dropped: waiting jobs that are over.
    """

    exit: int
    jobs: tuple[int, ...]
    entries: Mapping[int, Any] = field(default_factory=dict)
    kept: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True)
class Result:
    """Probabilities (b, classes) and confidences (b,) in the order of the jobs; or the exception that the step raised."""

    seconds: float
    probabilities: NDArray[np.floating] | None = None
    confidences: NDArray[np.floating] | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Aside:
    """Anything else that needs the model to itself."""

    call: Callable[[], Any]


@dataclass(frozen=True)
class Tidy:
    """The batch before left nothing behind, and neither did these jobs. Nothing is reported."""

    dropped: tuple[int, ...]


@dataclass(frozen=True)
class AsideResult:
    value: Any = None
    error: Exception | None = None


class Executor:
    """Give it work with `run`, one piece at a time; `report` is called with the result, in this thread."""

    def __init__(
        self,
        model: Steps,
        report: Callable[[Result | AsideResult], None],
        clock: Callable[[], float] = time.monotonic,
        idle: float = IDLE,
    ) -> None:
        self.model, self.report, self.clock, self.idle = model, report, clock, idle
        self.beat = clock()
        self.died: BaseException | None = None
        self.states: dict[int, Any] = {}  # of waiting jobs, each a batch of one
        self._last: tuple[tuple[int, ...], Any] = ((), None)
        self._work: queue.SimpleQueue[Work | Aside | Tidy | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="dynavit-executor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def run(self, work: Work | Aside | Tidy) -> None:
        self._work.put(work)

    def stop(self, patience: float = 5.0) -> None:
        """End after the present piece of work."""
        self._work.put(None)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(patience)

    def alive(self, limit: float) -> bool:
        """Whether the thread runs and has given a sign of life within `limit` seconds."""
        return self.died is None and self._thread.is_alive() and self.clock() - self.beat <= limit

    def _loop(self) -> None:
        try:
            while True:
                self.beat = self.clock()
                try:
                    work = self._work.get(timeout=self.idle)
                except queue.Empty:
                    continue
                if work is None:
                    return
                self.beat = self.clock()
                if isinstance(work, Tidy):
                    self._gather(Work(1, (), dropped=work.dropped))
                else:
                    self.report(self._aside(work) if isinstance(work, Aside) else self._run(work))
        except BaseException as error:
            self.died = error
        finally:
            self.states.clear()
            self._last = ((), None)

    def _aside(self, work: Aside) -> AsideResult:
        try:
            return AsideResult(work.call())
        except Exception as error:
            return AsideResult(error=error)

    def _run(self, work: Work) -> Result:
        start = self.clock()
        order, state = self._gather(work)
        try:
            if work.exit == 1:
                order = work.jobs
                state = self.model.begin([work.entries[job] for job in order])
            probabilities, after = self.model.step(state)
            confidences = self.model.confidence(probabilities)
        except Exception as error:
            if work.exit > 1:  # they will be tried again
                self._park(order, state, range(len(order)))
            return Result(self.clock() - start, error=named(error))
        self._last = (order, after)
        rows = [order.index(job) for job in work.jobs]
        return Result(self.clock() - start, probabilities[rows], confidences[rows])

    def _gather(self, work: Work) -> tuple[tuple[int, ...], Any]:
        """The state of the batch, and the order of jobs in it. Who goes on at once is not copied one by one."""
        for job in work.dropped:
            self.states.pop(job, None)
        before, state = self._last
        self._last = ((), None)
        at_once = [job for job in work.kept if job in work.jobs and work.exit > 1]
        self._park(before, state, [before.index(job) for job in work.kept if job not in at_once])
        if work.exit == 1:
            return (), None
        others = [job for job in work.jobs if job not in at_once]
        pieces = [self.states.pop(job) for job in others]
        if at_once:
            rows = [before.index(job) for job in at_once]
            pieces.append(state if rows == list(range(len(before))) else state[rows])
        return (*others, *at_once), self.model.join(pieces)

    def _park(self, jobs: Sequence[int], state: Any, rows: Sequence[int]) -> None:
        for row in rows:
            self.states[jobs[row]] = state if len(jobs) == 1 else state[[row]]
