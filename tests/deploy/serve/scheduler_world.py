"""A device, clients and images around the scheduler, under virtual time. Every law I1 to I17 of the service is checked here.

The world keeps its own books, from the events alone, and computes what it expects by formulas written out plainly. A breach is
an AssertionError that begins with the law's number.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

from dynavit.deploy.serve.budget import decide
from dynavit.deploy.serve.costs import Costs, Line
from dynavit.deploy.serve.curve import Applied
from dynavit.deploy.serve.jobs import Answered, Cancelled, Continues, Expired, Failed, OutOfMemory, Refused
from dynavit.deploy.serve.scheduler import Scheduler

LINES = [Line(4.0, 1.0), Line(3.0, 2.0), Line(1.0, 5.0)]  # seconds, so that all sums are exact
LEVELS = [(0.0, 0.0), (0.4, 0.2), (0.6, 0.6), (0.9, 0.7), (math.inf, math.inf)]  # thresholds, cheap to dear
BROWN_OUT = Applied((0.0, 0.0), 2)


@dataclass
class Image:
    """What the model will say: a confidence at each exit; a step that holds it raises at exit `poison`."""

    confidences: tuple[float, ...]
    poison: int = 0


@dataclass
class Book:
    """The world's own record of a job."""

    image: Image
    client: str
    thresholds: tuple[float, ...]
    cap: int
    deadline: float | None
    on_deadline: str
    degrade: bool
    brown_out: bool  # the operator's rule was in force when it came
    exit: int = 1  # waits for it, or runs it
    where: str = "waiting"
    passed: list[int] = field(default_factory=list)
    tries: Counter = field(default_factory=Counter)
    terminal: list = field(default_factory=list)

    @property
    def live(self):
        return not self.terminal

    @property
    def has_answer(self):
        """Its deadline would find one to give."""
        done = [exit for exit in self.passed if not math.isnan(self.image.confidences[exit - 1])]
        return self.on_deadline == "best" and bool(done)

    @property
    def used(self):
        """Thresholds and cap, lower ones where degradation is allowed by operator and request."""
        if not (self.degrade and self.brown_out):
            return self.thresholds, self.cap
        return tuple(map(min, self.thresholds, BROWN_OUT.thresholds)), min(self.cap, BROWN_OUT.max_exit)


class World:
    """One scheduler and everything around it.

    Args:
        fits: the largest batch of each exit that fits into the device's memory.
    """

    def __init__(self, kind=Scheduler, *, limits=(4, 3, 2), state_bytes=(3, 7, 0), fits=(9, 9, 9), **options):
        options = {"max_queue": 12, "max_per_client": 8, "max_parked": 21, "hold": 2} | options
        self.make = lambda: kind(len(limits), list(limits), Costs(LINES[: len(limits)]), list(state_bytes), **options)
        self.scheduler, self.options, self.fits, self.state_bytes = self.make(), options, fits, state_bytes
        self.exits = len(limits)
        self.now, self.books, self.batch, self.drained, self.ended = 0.0, {}, None, False, 0
        self.overtaken = [0] * self.exits  # by launches that were not urgent, while somebody waited there
        self.trace, self.answers = [], []  # calls and what they gave, to be repeated

    # ---- What happens

    def call(self, name, *args):
        """A method of the scheduler, noted down."""
        self.trace.append((name, args))
        try:
            result = getattr(self.scheduler, name)(*args)
        except Refused as refusal:
            result = refusal
        self.answers.append(_told(result))
        return result

    def offer(self, image, client="a", level=2, cap=None, patience=None, on_deadline="best", degrade=False, weight=1.0):
        cap = self.exits if cap is None else min(cap, self.exits)
        applied = Applied(LEVELS[level][: self.exits - 1], cap)
        deadline = None if patience is None else self.now + patience
        held = self.reasons(client, deadline)
        brown_out = self.scheduler.brown_out is not None and len(self.living()) >= self.scheduler.brown_out_at
        job = self.call("offer", self.now, client, applied, deadline, on_deadline, weight, degrade)
        if isinstance(job, Refused):
            assert job.reason in held, f"I8: refused for {job.reason}, and only {held} hold"
            assert job.retry_after == math.ceil(max(1.0, self.wait_ahead())), "I8: Retry-After"
            assert not self.drained or job.reason == "draining", "I15: another reason than draining"
            return None
        assert not held, f"I8: admitted although {held}"
        assert not self.drained, "I15: admitted after drain()"
        assert job not in self.books, "I1: a job's number was used before"
        self.books[job] = Book(image, client, applied.thresholds, cap, deadline, on_deadline, degrade, brown_out)
        self.check()
        return job

    def launch(self):
        assert self.batch is None
        self.settle(self.call("tick", self.now))
        waiting = {exit: self.waiting(exit) for exit in range(1, self.exits + 1)}
        urgent = self.urgent()
        able = [job for job in urgent if self.books[job].exit > 1 or self.room_at_exit_1(urgent)]
        batch = self.call("next_batch", self.now)
        if batch is None:
            assert not any(waiting.values()), f"I5: idle although {waiting} wait"
            return None
        self.check_launch(batch, waiting, urgent, able)
        for exit in range(1, self.exits + 1):
            passed_over = exit > batch.exit and waiting[exit] and batch.rule != "urgent"
            self.overtaken[exit - 1] = 0 if exit == batch.exit else self.overtaken[exit - 1] + bool(passed_over)
        self.batch, self.ends = batch, self.now + self.scheduler.costs(batch.exit, len(batch.jobs))
        for job in batch.jobs:
            self.books[job].where = "running"
            self.books[job].tries[batch.exit] += 1
        self.check()
        return batch

    def finish(self):
        """The running batch comes to its end: poisonous images raise, too large batches do not fit, the others have answers."""
        batch, self.batch = self.batch, None
        self.now = max(self.now, self.ends)
        books = [self.books[job] for job in batch.jobs]
        result = [book.image.confidences[batch.exit - 1] for book in books]
        if len(batch.jobs) > self.fits[batch.exit - 1]:
            result = OutOfMemory("too large")
        elif any(book.image.poison == batch.exit for book in books):
            result = RuntimeError("poison")
        else:
            for book in books:
                if book.live and not (book.deadline is not None and book.deadline <= self.now):
                    book.passed.append(batch.exit)
        before = {job: book.live for job, book in zip(batch.jobs, books, strict=True)}
        events = self.call("done", self.now, batch, result)
        for book in books:
            book.where = "waiting" if book.live else book.where
        self.settle(events)
        told = [event.job for event in events if not isinstance(event, Continues)]
        if not isinstance(result, Exception):
            going = [event.job for event in events if isinstance(event, Continues)]
            assert all(job in told or job in going for job, was in before.items() if was), (
                "I1: a job of the batch was forgotten"
            )
        self.check()
        return events

    def cancel(self, job):
        was = self.books[job].live
        events = self.call("cancel", job)
        assert events == ([Cancelled(job)] if was else []), "I14: cancel tells a live job's end once"
        self.settle(events)
        assert self.call("cancel", job) == [], "I14: cancel is idempotent"
        self.check()

    def wait(self, seconds):
        """Time passes; timers fire when they are due, also while a batch runs."""
        end = self.now + seconds
        if self.batch is not None:
            end = min(end, self.ends)
        while (due := self.scheduler.next_timer()) is not None and due <= end:
            self.now = max(self.now, due)
            fired = self.call("tick", self.now)
            self.settle(fired)
            if not fired:
                break  # a fill timer, which wants a launch
        self.now = max(self.now, end)
        self.settle(self.call("tick", self.now))
        late = [job for job, book in self.living().items() if book.deadline is not None and book.deadline <= self.now]
        assert not late, f"F17: {late} are past their deadline and were not told"
        self.check()

    def drain(self):
        self.drained = True
        self.call("drain")

    def run_out(self):
        """Everything that is here is finished."""
        for _ in range(50 * (1 + len(self.books))):
            if self.batch is not None:
                self.finish()
            if self.launch() is None and self.batch is None:
                break
        assert not self.living(), f"I17: {list(self.living())} wait for ever (I15 too, after drain)"
        assert self.scheduler.reserved == self.scheduler.parked == 0, "I7: bytes are left after all jobs have ended"
        assert self.scheduler.snapshot()["clients"] == 0
        self.check()

    def check_repeatable(self):
        again, told, batches = self.make(), [], []
        for name, args in self.trace:
            if name == "done":
                args = (args[0], batches[-1], args[2])
            try:
                result = getattr(again, name)(*args)
            except Refused as refusal:
                result = refusal
            if name == "next_batch":
                batches.append(result)
            told.append(_told(result))
        assert told == self.answers, "I13: the same calls gave another schedule"

    # ---- The books

    def living(self):
        return {job: book for job, book in self.books.items() if book.live}

    def waiting(self, exit):
        return [job for job, book in self.living().items() if book.where == "waiting" and book.exit == exit]

    def settle(self, events):
        for event in events:
            book = self.books[event.job]
            assert book.live, f"I1: {event} after {book.terminal}"  # so there is one end
            if isinstance(event, Continues):
                assert event.exit == book.exit + 1 <= book.used[1], f"I3: {event} from exit {book.exit} with cap {book.used}"
                assert self.decision(book, *book.used) is None, f"I12: {event}, but it had to leave"
                book.exit = event.exit
                continue
            waited, book.terminal = book.where == "waiting", [event]
            self.ended += 1
            if waited and not self.waiting(book.exit):
                self.overtaken[book.exit - 1] = 0  # nobody is left who was passed over
            self.check_end(event, book)

    def decision(self, book, thresholds=None, cap=None):
        known = book.image.confidences[: len(book.passed)]
        return decide(known, book.thresholds if thresholds is None else thresholds, cap or book.cap)

    def peak(self, book):
        """The most that it will carry."""
        return max(self.state_bytes[: book.used[1] - 1], default=0)

    def check_end(self, event, book):
        done = [exit for exit in book.passed if not math.isnan(book.image.confidences[exit - 1])]
        if isinstance(event, Answered):
            if event.why == "deadline":
                assert book.deadline is not None and book.on_deadline == "best", "I2: a deadline that was not asked for"
                assert book.deadline <= self.now and event.exit == max(done), "F17: not the best answer so far"
            elif event.why == "degraded":
                assert book.degrade and book.brown_out, "I2: degraded without leave"
                assert self.decision(book) is None, "I2: called degraded, and was not"
                assert event.exit == self.decision(book, *book.used).exit, "I2: degraded further than allowed"
            else:
                assert (event.exit, event.why) == self.decision(book), f"I12: {event} instead of {self.decision(book)}"
                assert not math.isnan(book.image.confidences[event.exit - 1]), "F14: NaN is no answer"
        elif isinstance(event, Expired):
            assert book.deadline is not None and book.deadline <= self.now, "I2: expired before its time"
            assert book.on_deadline == "fail" or not done, "F17: there was an answer to give"
        elif isinstance(event, Failed):
            exit = book.exit
            if event.reason == "error":
                assert book.image.poison == exit and book.tries[exit] >= 2, (
                    "I16: a job failed that was not poisonous, or at once"
                )
            elif event.reason == "out_of_memory":
                assert self.fits[exit - 1] == 0, "F15: a batch of one would have fitted"
            else:
                assert math.isnan(book.image.confidences[exit - 1]) and exit == book.passed[-1], "F14"

    def check(self):
        """Laws that hold at all times."""
        scheduler, living = self.scheduler, self.living()
        queued = [len(queue) for queue in scheduler.queues]
        waiting = Counter(book.exit for book in living.values() if book.where == "waiting")
        assert queued == [waiting[exit] for exit in range(1, self.exits + 1)], f"I1: {queued} wait, the books say {waiting}"
        assert len(self.books) == len(living) + self.ended, "I1: conservation"
        running = len(living) - sum(queued)
        assert running == sum(book.where == "running" for book in living.values()), "I1: conservation"
        assert sum(queued) <= self.options["max_queue"], "I8: more jobs wait than allowed"
        on_device = [] if self.batch is None else [self.books[job] for job in self.batch.jobs]
        holds = [book for book in living.values() if book.where == "running" or book.exit > 1]
        holds += [book for book in on_device if not book.live]
        reserved = sum(map(self.peak, holds))
        present = sum(self.state_bytes[book.exit - 2] for book in holds if book.exit > 1)
        assert scheduler.reserved == reserved, f"I7: {scheduler.reserved} bytes reserved, expected {reserved}"
        assert scheduler.parked == present, f"I7: {scheduler.parked} bytes parked, expected {present}"
        assert present <= reserved <= self.options["max_parked"], f"I7: {present} <= {reserved} <= {self.options['max_parked']}"
        for exit in range(1, self.exits + 1):
            self.overtaken[exit - 1] *= bool(queued[exit - 1])
        assert max(scheduler.bypass) <= self.options["hold"], f"I6: passed over {scheduler.bypass} times"
        assert max(self.overtaken) <= self.options["hold"], f"I6: really passed over {self.overtaken} times"
        for book in living.values():
            assert book.passed == list(range(1, len(book.passed) + 1)) and len(book.passed) <= book.cap, (
                f"I3: ran {book.passed}"
            )

    def check_launch(self, batch, waiting, urgent, able):
        assert 0 < len(batch.jobs) <= self.scheduler.batch_limits[batch.exit - 1], "I4: the size of a batch"
        assert len(set(batch.jobs)) == len(batch.jobs), "I4: a job twice in a batch"
        for job in batch.jobs:
            assert job in waiting[batch.exit], f"I3, I4, I14: {job} is over, expired, running or waits for another exit"
            assert self.books[job].deadline is None or self.books[job].deadline > self.now, "I4: an expired job"
        ends = [math.inf if self.books[job].deadline is None else self.books[job].deadline for job in batch.jobs]
        for job in urgent:
            if self.books[job].exit == batch.exit and job not in batch.jobs:
                assert max(ends) <= self.books[job].deadline, f"I9: {job} was passed over for a later deadline"
        if able:
            first = min(able, key=lambda job: (self.books[job].has_answer, self.books[job].deadline, job))
            assert batch.exit == self.books[first].exit, f"R1: job {first} is urgent at exit {self.books[first].exit}"
        else:
            assert batch.rule != "urgent", "R1: nobody is urgent"

    # ---- Formulas

    def profitable(self):
        """b* = min(B, ceil(a / (epsilon c)))"""
        lines = zip(LINES, self.scheduler.batch_limits, strict=False)
        return [min(most, max(1, math.ceil(line.fixed / (0.1 * line.each)))) for line, most in lines]

    def wait_ahead(self):
        """W = sum_k |Q_k| rho_k, rho_k = sum_{j >= k} P(reach j | at k) s_j(b*_j) / b*_j"""
        total, sizes, leaving = 0.0, self.profitable(), self.scheduler.forecast.leaving
        for k in range(self.exits):
            reach, rho = 1.0, 0.0
            for j in range(k, self.exits):
                rho += reach * LINES[j](sizes[j]) / sizes[j]
                reach *= 1 - leaving[j]
            total += len(self.waiting(k + 1)) * rho
        return total

    def reasons(self, client, deadline):
        """Reasons for which an offer has to be refused now."""
        mine = sum(book.client == client for book in self.living().values())
        late = deadline is not None and self.now + self.wait_ahead() + LINES[0](1) > deadline + 1e-9
        held = {
            "draining": self.drained,
            "client_limit": mine >= self.options["max_per_client"],
            "queue_full": len(self.living()) >= self.options["max_queue"],
            "would_miss_deadline": late,
        }
        return [reason for reason, holds in held.items() if holds]

    def room_at_exit_1(self, urgent):
        """Whether the first in line at exit 1 can reserve its peak."""
        queue = sorted(self.scheduler.queues[0], key=lambda job: (job.tag, job.id))
        first = sorted((self.books[job].deadline, job) for job in urgent if self.books[job].exit == 1)
        head = first[0][1] if first else queue[0].id
        return self.scheduler.reserved + self.peak(self.books[head]) <= self.options["max_parked"]

    def urgent(self):
        """d - s_k(b*_k) - S < t <= d - s_k(1), S the longest batch that another stage could start now."""
        sizes, found = self.profitable(), []
        could = [self.longest(exit) for exit in range(1, self.exits + 1)]
        for job, book in self.living().items():
            if book.deadline is None or book.where != "waiting":
                continue
            others = max([seconds for exit, seconds in enumerate(could, 1) if exit != book.exit], default=0.0)
            line = LINES[book.exit - 1]
            if book.deadline - line(sizes[book.exit - 1]) - others < self.now <= book.deadline - line(1):
                found.append(job)
        return found

    def longest(self, exit):
        jobs = self.scheduler.queues[exit - 1][: self.scheduler.batch_limits[exit - 1]]
        again = [at for at, job in enumerate(jobs) if job.retried]
        jobs = jobs[: max(again[0], 1)] if again else jobs
        free, fitting = self.options["max_parked"] - self.scheduler.reserved, 0
        for job in jobs:
            free -= self.peak(self.books[job.id]) if exit == 1 else 0
            if free < 0:
                break
            fitting += 1
        return LINES[exit - 1](fitting) if fitting else 0.0


def _told(result):
    """In a form that can be compared."""
    if isinstance(result, Refused):
        return result.reason, result.retry_after
    return result
