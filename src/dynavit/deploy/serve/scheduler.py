"""Which images run which exit next. A pure state machine: time is an argument, nothing sleeps, nothing is random.

    offer(now, ...)  -> job            a job enters, or is refused with a reason
    next_batch(now)  -> Batch | None   the device is free: what shall it run?
    done(now, batch, confidences)      a step ended, or raised: the events of its jobs
    tick(now), next_timer()            deadlines fire when they are due, also in the middle of a batch
    cancel(job), drain(), snapshot()

Survivors of a batch do not run on alone: they wait for company from other batches, but only while a shallower exit has a full,
profitable batch, so that the device is busy anyway (the pressure rule). The rules, in their order, are methods of `Scheduler`:

    urgent    a deadline would be missed if another stage went first
    (memory)  a job reserves the most it will ever carry when it enters exit 1; deeper exits never need more
    ripe      the deepest exit from 2 on with a profitable batch, or that was passed over `hold` times
    pressure  the shallowest exit with a profitable batch
    rest      the deepest exit that has anything: never idle

"""

import bisect
import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .budget import decide
from .costs import Costs
from .curve import Applied
from .forecast import Forecast
from .jobs import (
    Answered,
    Batch,
    Cancelled,
    Continues,
    Event,
    Expired,
    Failed,
    Job,
    OnDeadline,
    OutOfMemory,
    Reason,
    Refused,
)


class Scheduler:
    """Jobs of one model with `exits` exits, on one device.

    Args:
        batch_limits: the largest batch of each exit.
        costs: seconds of a step, `costs(exit, batch)`; may change while it runs.
        state_bytes: what an image carries after each exit; nothing after the last.
        max_queue: jobs that wait or run.
        max_per_client: the same of one client.
        max_parked: bytes that may be reserved for carried states.
        hold: times that a waiting exit may be passed over.
        epsilon: a batch is profitable if one more image in it would save less than this share per image.
        batch_wait: seconds that exit 1 may wait for company while the device is idle.
        shares: of images that are expected to leave at each exit, until enough have been seen.
        brown_out: what requests that allow it get while `brown_out_at` jobs or more are there.
    """

    def __init__(
        self,
        exits: int,
        batch_limits: Sequence[int],
        costs: Costs,
        state_bytes: Sequence[int],
        *,
        max_queue: int = 256,
        max_per_client: int = 64,
        max_parked: int = 512 * 2**20,
        hold: int = 8,
        epsilon: float = 0.1,
        batch_wait: float = 0.0,
        shares: Sequence[float] | None = None,
        brown_out: Applied | None = None,
        brown_out_at: int | None = None,
    ) -> None:
        for name, values in (("batch_limits", batch_limits), ("state_bytes", state_bytes)):
            if len(values) != exits or min(values) < (name == "batch_limits"):
                raise ValueError(f"{name} has a number for each of the {exits} exits, got {list(values)}")
        self.exits, self.batch_limits, self.costs, self.state_bytes = exits, list(batch_limits), costs, tuple(state_bytes)
        self.max_queue, self.max_per_client, self.max_parked = max_queue, max_per_client, max_parked
        self.hold, self.epsilon, self.batch_wait = hold, epsilon, batch_wait
        self.brown_out, self.brown_out_at = brown_out, max_queue // 2 if brown_out_at is None else brown_out_at
        if min(max_queue, max_per_client, hold) < 1:
            raise ValueError(
                f"max_queue={max_queue}, max_per_client={max_per_client}, hold={hold}: each is at least 1, or no job would run"
            )
        if (most := self.peak(exits)) > max_parked:
            raise ValueError(
                f"max_parked={max_parked} bytes is less than the {most} that one image carries, so none could ever run"
            )
        self.forecast = Forecast(exits, shares)
        self.jobs: dict[int, Job] = {}  # waiting or running
        self.queues: list[list[Job]] = [[] for _ in range(exits)]  # sorted by `_turn`
        self.bypass = [0] * exits
        self.reserved = self.parked = 0  # bytes
        self.draining = False
        self.running: Batch | None = None
        self.regrouped = [0] * exits  # jobs so far
        self._on_device: list[Job] = []  # also jobs that are over
        self._outbox: list[Event] = []
        self._timers: list[tuple[float, int]] = []  # a heap of deadlines; those of jobs that are over stay for a while
        self._clients: dict[str, int] = {}  # jobs waiting or running
        self._last_tag: dict[str, float] = {}
        self._virtual = 0.0  # tag of the last job launched
        self._next_id = 0
        self._launched = 0  # batches
        self.rules: tuple[tuple[str, Callable[[View], int | None]], ...] = (
            ("urgent", self.urgent),
            ("ripe", self.ripe),
            ("pressure", self.pressed),
            ("rest", self.deepest),
        )

    # ---- Admission

    def offer(
        self,
        now: float,
        client: str,
        applied: Applied,
        deadline: float | None = None,
        on_deadline: OnDeadline = "best",
        weight: float = 1.0,
        degrade: bool = False,
    ) -> int:
        """Admit a job, or raise `Refused`.

        Args:
            client: whom it is for; clients take turns at exit 1.
            deadline: the time at which it ends, with its best answer so far or none.
            weight: expected cost of the job; a client gets its share of the device by it.
            degrade: the request allows an earlier exit under load.
        """
        if reason := self.refusal(now, client, deadline):
            raise Refused(reason, math.ceil(max(1.0, self.expected_wait())))
        thresholds, cap, asked = applied.thresholds, applied.max_exit, None
        if degrade and self.brown_out is not None and len(self.jobs) >= self.brown_out_at:
            asked = thresholds, cap
            thresholds = tuple(map(min, thresholds, self.brown_out.thresholds))
            cap = min(cap, self.brown_out.max_exit)
        tag = max(self._virtual, self._last_tag.get(client, 0.0)) + weight
        job = Job(self._next_id, client, now, thresholds, cap, tag, self.peak(cap), deadline, on_deadline, asked)
        self._next_id += 1
        self._last_tag[client] = tag
        self._clients[client] = self._clients.get(client, 0) + 1
        self.jobs[job.id] = job
        if deadline is not None:
            heapq.heappush(self._timers, (deadline, job.id))
            self._forget_timers()
        self._enqueue(job)
        return job.id

    def refusal(self, now: float, client: str, deadline: float | None = None) -> Reason | None:
        """The reason for which a job would be refused now."""
        if self.draining:
            return "draining"
        if self._clients.get(client, 0) >= self.max_per_client:
            return "client_limit"
        if len(self.jobs) >= self.max_queue:
            return "queue_full"
        if deadline is not None and now + self.expected_wait() + self.costs(1, 1) > deadline:
            return "would_miss_deadline"
        return None

    def expected_wait(self) -> float:
        """Seconds of work that is waiting."""
        ahead = self.forecast.work(self.costs, self.profitable())
        return sum(len(queue) * work for queue, work in zip(self.queues, ahead, strict=True))

    def expected_work(self, applied: Applied) -> float:
        """Seconds of the device that a job of this budget is expected to take."""
        shares = applied.shares or [float(exit == applied.max_exit) for exit in range(1, self.exits + 1)]
        each = [self.costs(exit, batch) / batch for exit, batch in enumerate(self.profitable(), start=1)]
        return sum(sum(shares[at:]) * seconds for at, seconds in enumerate(each))

    def capacity(self) -> float:
        """Images per second with full batches, at the present mix of exits."""
        return 1 / self.forecast.work(self.costs, self.batch_limits)[0]

    def peak(self, cap: int) -> int:
        """The most bytes that a job with this cap carries between exits."""
        return max(self.state_bytes[: cap - 1], default=0)

    def profitable(self) -> list[int]:
        """b* of each exit."""
        return [self.costs.profitable(exit, most, self.epsilon) for exit, most in enumerate(self.batch_limits, start=1)]

    # ---- The next batch

    def next_batch(self, now: float) -> Batch | None:
        """The batch that a free device shall run; None if nothing waits. It ends with `done`, and nothing else runs before."""
        if self.running is not None:
            raise RuntimeError(f"exit {self.running.exit} is running; tell its end with done() first")
        self._expire(now)
        view = self._look(now)
        for rule, choose in self.rules:
            if (exit := choose(view)) is not None:
                waits = rule == "rest" and exit == 1 and not self.draining and now < self._filled_at()
                return None if waits else self._launch(view.ready[exit - 1], exit, rule)
        return None

    def urgent(self, view: "View") -> int | None:
        """The stage of the earliest deadline that can still be met, but not if another stage goes first.

        Jobs that have no answer yet come before those that would only get a better one: else, where deep steps take long,
        every tenth image got none at all (4,000 simulated ones at 80 % load, deadline 3 s_1(B)). In this order at most 3 in
        1,000 get none.
        """
        return next((job.exit for job in view.urgent if view.ready[job.exit - 1]), None)

    def ripe(self, view: "View") -> int | None:
        """The deepest exit from 2 on with a profitable batch, or that has been passed over too often."""
        for exit in range(self.exits, 1, -1):
            waiting = len(self.queues[exit - 1])
            if waiting and (waiting >= view.profitable[exit - 1] or self.bypass[exit - 1] >= self.hold):
                return exit
        return None

    def pressed(self, view: "View") -> int | None:
        """The shallowest exit with a profitable batch: the device is busy anyway, so survivors may gather."""
        for exit, (ready, profitable) in enumerate(zip(view.ready, view.profitable, strict=True), start=1):
            if len(ready) >= profitable:
                return exit
        return None

    def deepest(self, view: "View") -> int | None:
        """The deepest exit that can run anything: what was begun is finished first."""
        return max((exit for exit, ready in enumerate(view.ready, start=1) if ready), default=None)

    def admitted_by_memory(self, jobs: Sequence[Job]) -> int:
        """How many of them, from the first on, can reserve what they will carry."""
        free = self.max_parked - self.reserved
        for count, job in enumerate(jobs):
            free -= job.peak
            if free < 0:
                return count
        return len(jobs)

    def count_bypass(self, exit: int) -> None:
        """Deeper exits were passed over."""
        for deeper in range(exit, self.exits):
            self.bypass[deeper] += bool(self.queues[deeper])

    def _look(self, now: float) -> "View":
        profitable, stages = self.profitable(), range(1, self.exits + 1)
        ready = [self._ready(exit, ()) for exit in stages]
        if not self._timers:
            return View(profitable, ready, ())
        longest = [self.costs(exit, len(jobs)) if jobs else 0.0 for exit, jobs in enumerate(ready, start=1)]
        pressing = []
        for job in self.jobs.values():
            if job.deadline is None or job.running:
                continue
            other = max((seconds for exit, seconds in enumerate(longest, start=1) if exit != job.exit), default=0.0)
            too_late_soon = job.deadline - self.costs(job.exit, profitable[job.exit - 1]) - other < now
            if too_late_soon and now <= job.deadline - self.costs(job.exit, 1):
                pressing.append(job)
        pressing.sort(key=_by_deadline)
        ready = [self._ready(exit, pressing) for exit in stages] if pressing else ready
        return View(profitable, ready, tuple(sorted(pressing, key=_has_answer)))

    def _ready(self, exit: int, pressing: Sequence[Job]) -> list[Job]:
        """The batch that an exit could run: urgent jobs by deadline, then the others by their turn; what memory allows.

        A job whose step raised runs alone, so that it fails nobody else.
        """
        queue, first = self.queues[exit - 1], [job for job in pressing if job.exit == exit]
        order = [*first, *(job for job in queue if job not in first)] if first else queue
        chosen = order[: self.batch_limits[exit - 1]]
        if again := [at for at, job in enumerate(chosen) if job.retried]:
            chosen = chosen[: max(again[0], 1)]
        return chosen[: self.admitted_by_memory(chosen)] if exit == 1 else chosen

    def _launch(self, chosen: list[Job], exit: int, rule: str) -> Batch:
        if rule != "urgent":
            self.count_bypass(exit)
        self.bypass[exit - 1] = 0
        for job in chosen:
            self.queues[exit - 1].remove(job)
            job.queued, job.running = False, True
            if exit == 1:
                job.reserved = True
                self.reserved += job.peak
                self._virtual = max(self._virtual, job.tag)
        regrouped = len(chosen) if len({job.origin for job in chosen}) > 1 else 0
        self.regrouped[exit - 1] += regrouped
        self._launched += 1
        self.running, self._on_device = Batch(exit, tuple(job.id for job in chosen), rule, regrouped), chosen
        return self.running

    # ---- The end of a batch

    def done(self, now: float, batch: Batch, result: Sequence[float] | BaseException) -> list[Event]:
        """The step of the running batch ended with a confidence for each of its jobs, or raised.

        Deadlines that have passed count first, so that a result that came too late is dropped. After an exception every job is
        tried once more by itself. After `OutOfMemory` all are tried in batches of half the size.
        """
        if batch is not self.running:
            raise RuntimeError("this batch is not running")
        self._expire(now)
        jobs, self._on_device, self.running = self._on_device, [], None
        for job in jobs:
            job.running = False
        for job in (job for job in jobs if job.over):
            self._release(job)
        if isinstance(result, BaseException):
            self._raised(batch, [job for job in jobs if not job.over], result)
        else:
            for job, confidence in zip(jobs, result, strict=True):
                if not job.over:
                    self._passed(job, float(confidence))
        return self._events()

    def _passed(self, job: Job, confidence: float) -> None:
        job.confidences.append(confidence)
        job.retried = False
        decision = decide(job.confidences, job.thresholds, job.cap)
        self.forecast.saw(job.exit, decision is not None)
        if decision is None:
            job.exit += 1
            job.origin = self._launched
            self.parked += self.state_bytes[job.exit - 2] - job.carried
            job.carried = self.state_bytes[job.exit - 2]
            self._enqueue(job)
            self._outbox.append(Continues(job.id, job.exit))
        elif math.isnan(confidence):
            self._end(job, Failed(job.id, "not_finite"))
        else:
            asked = decision if job.asked is None else decide(job.confidences, *job.asked)
            self._end(job, Answered(job.id, "degraded" if asked is None else asked.why, decision.exit))

    def _raised(self, batch: Batch, jobs: Sequence[Job], error: BaseException) -> None:
        too_large = isinstance(error, OutOfMemory) and len(batch.jobs) > 1
        if too_large:
            self.batch_limits[batch.exit - 1] = max(1, min(self.batch_limits[batch.exit - 1], len(batch.jobs) // 2))
        for job in jobs:
            if isinstance(error, OutOfMemory) and not too_large:
                self._end(job, Failed(job.id, "out_of_memory", error))
            elif job.retried and not too_large:
                self._end(job, Failed(job.id, "error", error))
            else:
                job.retried = job.retried or not too_large
                if job.exit == 1:
                    self._release(job)  # it carries nothing yet, and will reserve again
                self._enqueue(job)

    # ---- Time, ends

    def tick(self, now: float) -> list[Event]:
        """Deadlines that are due, of waiting and of running jobs."""
        self._expire(now)
        return self._events()

    def next_timer(self) -> float | None:
        """The time at which to call `tick` and `next_batch` if nothing happens before."""
        while self._timers and self._timers[0][1] not in self.jobs:
            heapq.heappop(self._timers)
        due = [self._timers[0][0]] if self._timers else []
        if self.batch_wait and self.queues[0] and self.running is None:
            due.append(self._filled_at())
        return min(due, default=None)

    def cancel(self, id: int) -> list[Event]:
        """Nobody waits for the job any more. It leaves its queue at once; the result of a running batch will be dropped."""
        if (job := self.jobs.get(id)) is not None:
            self._end(job, Cancelled(id))
        return self._events()

    def drain(self) -> None:
        """Admit no more; what is here is finished."""
        self.draining = True

    def snapshot(self) -> dict[str, Any]:
        """Numbers of the present moment, lists with one for each exit."""
        return {
            "queued": [len(queue) for queue in self.queues],
            "running": 0 if self.running is None else len(self.running.jobs),
            "running_exit": None if self.running is None else self.running.exit,
            "jobs": len(self.jobs),
            "clients": len(self._clients),
            "parked_bytes": self.parked,
            "reserved_bytes": self.reserved,
            "bypass": list(self.bypass),
            "regrouped": list(self.regrouped),
            "batch_limits": list(self.batch_limits),
            "profitable": self.profitable(),
            "leaving": list(self.forecast.leaving),
            "expected_wait": self.expected_wait(),
            "capacity": self.capacity(),
            "draining": self.draining,
        }

    def _filled_at(self) -> float:
        """Until then exit 1 may wait for company."""
        return min(job.arrival for job in self.queues[0]) + self.batch_wait if self.batch_wait else -math.inf

    def _expire(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            job = self.jobs.get(heapq.heappop(self._timers)[1])
            if job is None:
                continue
            best = job.best if job.on_deadline == "best" else None
            self._end(job, Expired(job.id) if best is None else Answered(job.id, "deadline", best))

    def _forget_timers(self) -> None:
        """Of jobs that are over, once they are the most: deadlines may lie a day ahead, and answers come in milliseconds."""
        if len(self._timers) > 2 * len(self.jobs) + 16:
            self._timers = [timer for timer in self._timers if timer[1] in self.jobs]
            heapq.heapify(self._timers)

    def _end(self, job: Job, event: Event) -> None:
        """A terminal state. What a running job reserved is freed when its batch ends, since the memory is in use until then."""
        self._outbox.append(event)
        job.over = True
        del self.jobs[job.id]
        self._clients[job.client] -= 1
        if not self._clients[job.client]:
            del self._clients[job.client], self._last_tag[job.client]
        if not job.running:
            queue = self.queues[job.exit - 1]
            if job.queued:
                queue.remove(job)
                job.queued = False
                if not queue:
                    self.bypass[job.exit - 1] = 0
            self._release(job)

    def _release(self, job: Job) -> None:
        if job.reserved:
            self.reserved -= job.peak
            self.parked -= job.carried
            job.reserved, job.carried = False, 0

    def _enqueue(self, job: Job) -> None:
        job.queued = True
        bisect.insort(self.queues[job.exit - 1], job, key=_by_tag if job.exit == 1 else _by_arrival)

    def _events(self) -> list[Event]:
        events, self._outbox = self._outbox, []
        return events


@dataclass(frozen=True)
class View:
    """What the rules look at: b* of each exit, the batch that each could run, and urgent jobs in the order of their need."""

    profitable: list[int]
    ready: list[list[Job]]
    urgent: tuple[Job, ...]


def _by_tag(job: Job) -> tuple[float, int]:
    return job.tag, job.id


def _by_arrival(job: Job) -> int:
    return job.id


def _by_deadline(job: Job) -> tuple[float, int]:
    return (math.inf if job.deadline is None else job.deadline), job.id


def _has_answer(job: Job) -> bool:
    """Whether its deadline would find an answer to give."""
    return job.on_deadline == "best" and job.best is not None
