"""Scheduler, executor and asyncio put together: `await engine.submit(...)` is one image and its answer.

The scheduler is asked in the event loop alone, so it needs no lock; the model works in the executor's thread.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .costs import Costs
from .curve import Applied
from .executor import IDLE, Aside, AsideResult, Executor, Result, Steps, Tidy, Work
from .jobs import Answered, Batch, Cancelled, Continues, Event, Expired, Failed, OnDeadline, Refused, Why
from .scheduler import Scheduler

WATCH = 0.5  # seconds between two looks at the executor
Ended = Literal["expired", "cancelled", "error", "out_of_memory", "not_finite"]


class JobExpired(Exception):
    """The deadline passed before any exit had an answer."""


class JobFailed(Exception):
    """The model could not answer; `reason` is error, out_of_memory or not_finite."""

    def __init__(self, reason: str, error: BaseException | None = None) -> None:
        super().__init__(reason)
        self.reason, self.error = reason, error


class EngineStopped(Exception):
    """The executor died or hangs, or the service ended before this job."""


@dataclass(frozen=True)
class ExitAnswer:
    """The answer of one exit that was run. `batch` images ran it together."""

    exit: int
    label: int
    confidence: float
    probabilities: NDArray[np.floating]  # (classes,)
    batch: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """The answer about an image: that of `exits[exit - 1]`."""

    exits: tuple[ExitAnswer, ...]
    exit: int
    why: Why
    queue_ms: float
    compute_ms: float

    @property
    def answer(self) -> ExitAnswer:
        return self.exits[self.exit - 1]

    @property
    def batch(self) -> list[int]:
        """The company at each exit."""
        return [answer.batch for answer in self.exits]


class Observer:
    """Told about everything that metrics count; subclasses override what they need."""

    def refused(self, reason: str) -> None: ...

    def waited(self, exit: int, seconds: float) -> None: ...

    def stepped(self, batch: Batch, seconds: float, confidences: NDArray[np.floating]) -> None: ...

    def raised(self, batch: Batch, error: BaseException) -> None: ...

    def answered(self, outcome: Outcome) -> None: ...

    def ended(self, how: Ended) -> None: ...


@dataclass
class _Waiter:
    future: "asyncio.Future[Outcome]"
    entry: Any
    arrival: float
    since: float  # it waits for its exit
    exits: list[ExitAnswer] = field(default_factory=list)


class Engine:
    """Start it inside a running event loop.

    Args:
        observer: is told what happens.
        on_death: is called once if the executor dies or gives no sign of life.
        hang_after: seconds without a sign of life, or five times the longest batch if that is more.
    """

    def __init__(
        self,
        served: Steps,
        scheduler: Scheduler,
        *,
        observer: Observer | None = None,
        on_death: Callable[[BaseException | None], None] | None = None,
        hang_after: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.served, self.scheduler, self.clock = served, scheduler, clock
        self.observer, self.on_death, self.hang_after = observer or Observer(), on_death, hang_after
        self.executor = Executor(served, self._report, clock, idle=min(IDLE, hang_after / 4))
        self._waiters: dict[int, _Waiter] = {}
        self._batch: Batch | None = None
        self._kept: tuple[int, ...] = ()
        self._dropped: list[int] = []
        self._asides: list[tuple[float, Callable[[], Any], asyncio.Future[Any]]] = []
        self._beside: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._woken = self._stopped = self._untidy = False
        self._empty = asyncio.Event()

    @property
    def costs(self) -> Costs:
        return self.scheduler.costs

    # ---- Life

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._empty.set()
        self.executor.start()
        self._look_after()

    def alive(self) -> bool:
        """Whether the executor works or could work."""
        return not self._stopped and self.executor.alive(self._patience())

    async def drain(self, seconds: float | None = None) -> bool:
        """Admit no more and finish what is here; False if that took longer."""
        self.scheduler.drain()
        self._wake()
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def stop(self, patience: float = 5.0) -> None:
        """End now; whoever still waits gets `EngineStopped`."""
        if self._stopped:
            return
        self._end(EngineStopped("the service is ending"))
        self.executor.stop(patience)

    # ---- Work

    async def submit(
        self,
        entry: Any,
        applied: Applied,
        client: str = "",
        deadline: float | None = None,
        *,
        on_deadline: OnDeadline = "best",
        priority: float = 1.0,
        degrade: bool = False,
    ) -> Outcome:
        """The answer about one image. Cancelling the call cancels the job.

        Args:
            entry: see `ServedModel.prepare`.
            deadline: on the engine's clock.
            priority: a client's jobs of 2 get half the turns of those of 1.

        Raises:
            Refused, JobExpired, JobFailed, EngineStopped.
        """
        if self._stopped:
            raise EngineStopped("the service is ending")
        now, weight = self.clock(), priority * self.scheduler.expected_work(applied)
        try:
            job = self.scheduler.offer(now, client, applied, deadline, on_deadline, weight, degrade)
        except Refused as refusal:
            self.observer.refused(refusal.reason)
            raise
        waiter = self._waiters[job] = _Waiter(self._loop.create_future(), entry, now, now)
        self._empty.clear()
        self._wake()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            self._deliver(self.scheduler.cancel(job))
            raise

    async def aside(self, call: Callable[[], Any], patience: float = 1.0) -> Any:
        """The result of `call`, made in the executor's thread when no image waits, or after `patience` seconds at most."""
        if self._stopped:
            raise EngineStopped("the service is ending")
        future = self._loop.create_future()
        self._asides.append((self.clock() + patience, call, future))
        self._loop.call_later(patience, self._wake)
        self._wake()
        return await future

    def _wake(self) -> None:
        """Look at the queues soon: after all requests that came in together have been offered."""
        if not self._woken and not self._stopped:
            self._woken = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._woken = False
        if self._stopped:
            return
        now = self.clock()
        self._deliver(self.scheduler.tick(now))
        if self._batch is None and self._beside is None:
            self._asides = [aside for aside in self._asides if not aside[2].done()]
            overdue = bool(self._asides) and self._asides[0][0] <= now
            batch = None if overdue else self.scheduler.next_batch(now)
            if batch is not None:
                self._launch(now, batch)
            elif self._asides:
                _, call, self._beside = self._asides.pop(0)
                self.executor.run(Aside(call))
            elif self._untidy and not self._kept:
                self.executor.run(Tidy(tuple(self._dropped)))
                self._dropped, self._untidy = [], False
        self._arm()

    def _launch(self, now: float, batch: Batch) -> None:
        for job in batch.jobs:
            self.observer.waited(batch.exit, now - self._waiters[job].since)
        entries = {job: self._waiters[job].entry for job in batch.jobs} if batch.exit == 1 else {}
        self._batch = batch
        self.executor.run(Work(batch.exit, batch.jobs, entries, self._kept, tuple(self._dropped)))
        self._kept, self._dropped, self._untidy = (), [], True

    def _report(self, result: Result | AsideResult) -> None:
        """In the executor's thread."""
        try:
            if isinstance(result, AsideResult):
                self._loop.call_soon_threadsafe(self._aside_done, result)
            else:
                self._loop.call_soon_threadsafe(self._step_done, result)
        except RuntimeError:  # the loop is closed: nobody waits
            if not self._loop.is_closed():
                raise

    def _step_done(self, result: Result) -> None:
        batch, self._batch = self._batch, None
        if batch is None or self._stopped:
            return
        now = self.clock()
        if result.error is not None or result.confidences is None or result.probabilities is None:
            error = result.error or RuntimeError("the step gave no result")
            self.observer.raised(batch, error)
            events = self.scheduler.done(now, batch, error)
        else:
            self.costs.observe(batch.exit, len(batch.jobs), result.seconds)
            self.observer.stepped(batch, result.seconds, result.confidences)
            for job, probabilities, confidence in zip(batch.jobs, result.probabilities, result.confidences, strict=True):
                if (waiter := self._waiters.get(job)) is not None:
                    waiter.since = now
                    waiter.exits.append(
                        ExitAnswer(
                            batch.exit,
                            int(probabilities.argmax()),
                            float(confidence),
                            probabilities,
                            len(batch.jobs),
                            result.seconds,
                        )
                    )
            events = self.scheduler.done(now, batch, result.confidences.tolist())
            self._kept = tuple(event.job for event in events if isinstance(event, Continues))
        self._deliver(events)
        self._wake()

    def _aside_done(self, result: AsideResult) -> None:
        future, self._beside = self._beside, None
        if future is not None and not future.done():
            if result.error is None:
                future.set_result(result.value)
            else:
                future.set_exception(result.error)
        self._wake()

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Continues):
                continue
            waiter = self._waiters.pop(event.job)
            if event.job in self._kept:
                self._kept = tuple(job for job in self._kept if job != event.job)
            elif waiter.exits:
                self._dropped.append(event.job)
            if isinstance(event, Answered):
                outcome = self._outcome(waiter, event)
                self.observer.answered(outcome)
                _settle(waiter.future, outcome)
            elif isinstance(event, Failed):
                self.observer.ended(event.reason)
                _settle(waiter.future, JobFailed(event.reason, event.error))
            elif isinstance(event, Expired):
                self.observer.ended("expired")
                _settle(waiter.future, JobExpired("the deadline passed before an exit had answered"))
            elif isinstance(event, Cancelled):
                self.observer.ended("cancelled")
        if not self._waiters:
            self._empty.set()

    def _outcome(self, waiter: _Waiter, event: Answered) -> Outcome:
        compute = sum(answer.seconds for answer in waiter.exits)
        total = self.clock() - waiter.arrival
        return Outcome(tuple(waiter.exits), event.exit, event.why, 1e3 * max(total - compute, 0.0), 1e3 * compute)

    # ---- Timers

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self.scheduler.next_timer()
        self._timer = None if due is None else self._loop.call_later(max(due - self.clock(), 0.0), self._wake)

    def _patience(self) -> float:
        limits = self.scheduler.batch_limits
        return max(self.hang_after, 5 * max(self.costs(exit, most) for exit, most in enumerate(limits, start=1)))

    def _look_after(self) -> None:
        if self._stopped:
            return
        if not self.executor.alive(self._patience()):
            self._end(EngineStopped("the executor died or hangs"))
            if self.on_death is not None:
                self.on_death(self.executor.died)
            return
        self._watch = self._loop.call_later(min(WATCH, self.hang_after / 4), self._look_after)

    def _end(self, error: EngineStopped) -> None:
        self._stopped = True
        for timer in (self._timer, self._watch):
            if timer is not None:
                timer.cancel()
        waiting, self._waiters = self._waiters, {}
        for waiter in waiting.values():
            _settle(waiter.future, error)
        for future in [aside[2] for aside in self._asides] + ([self._beside] if self._beside is not None else []):
            _settle(future, error)
        self._empty.set()


def _settle(future: "asyncio.Future[Any]", result: Any) -> None:
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
