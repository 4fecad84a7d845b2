"""The rules of the scheduler one by one, and that none of them can be left out."""

import math
import random

import pytest

from deploy.serve.scheduler_world import LINES, Image, World
from deploy.serve.simulator import simulate as simulator
from dynavit.deploy.serve.budget import decide
from dynavit.deploy.serve.costs import Costs
from dynavit.deploy.serve.curve import Applied
from dynavit.deploy.serve.jobs import Answered, Expired, Failed, OutOfMemory, Refused
from dynavit.deploy.serve.scheduler import Scheduler

EASY, MIDDLE, HARD = Image((1.0, 1.0, 1.0)), Image((0.0, 1.0, 1.0)), Image((0.0, 0.0, 1.0))


# ---- Each rule has a task that fails without it


def an_urgent_job_is_in_time(kind):
    """Deep queues are ripe all the time, and would be served first; a job with a deadline still gets its exit 1."""
    world = World(kind, max_queue=99, max_per_client=99, max_parked=999)
    urgent = world.offer(EASY, client="b", patience=60.0, weight=1000.0)  # the last in turn
    for _ in range(12):
        world.offer(HARD)
    world.run_out()
    assert world.books[urgent].terminal == [Answered(urgent, "confident", 1)], "R1: the deadline was missed"


def memory_is_never_exceeded(kind):
    """There is room for one job's peak, so exit 1 takes one at a time."""
    world = World(kind, max_parked=7)
    for _ in range(4):
        world.offer(HARD)
    assert world.launch().jobs == (0,), "R2"
    world.run_out()


def a_deep_job_is_not_held_for_ever(kind):
    """One survivor waits at exit 2, too few for a profitable batch, while exit 1 always has a full one."""
    world = World(kind, hold=2, max_queue=99, max_per_client=99, max_parked=999)
    world.offer(MIDDLE)
    for _ in range(10):
        for _ in range(4):
            world.offer(EASY)
        world.launch()
        world.finish()
    world.run_out()
    assert any(exit == 2 for exit in [batch.exit for batch in world.answers if hasattr(batch, "jobs")][:5])


def a_full_deep_queue_goes_first(kind):
    """Exit 2 has a profitable batch, and so has exit 1: what was begun is finished."""
    world = World(kind, hold=99, max_queue=99, max_per_client=99, max_parked=999)
    for _ in range(4):
        world.offer(MIDDLE)
    world.launch()
    for _ in range(4):
        world.offer(EASY)
    world.finish()
    assert (world.launch().exit, world.batch.rule) == (2, "ripe"), "R3"


def survivors_gather_under_pressure(kind):
    """Where launches are dear, regrouping gains what the specification says: +45 % at 60/25/15, here on few jobs."""
    lines, most = simulator.COSTS["accelerator-like"]
    jobs = simulator.arrivals(simulator.MIXES["60/25/15"], simulator.SATURATED, 1500, 0)
    own, ours = (simulator.simulate(simulator.make(each, lines, most), jobs).rate for each in (simulator.Shrinking, kind))
    assert ours > 1.3 * own, f"R4: {ours:.0f} images/s are not more than the {own:.0f} of a shrinking batch"


def the_device_is_never_idle(kind):
    world = World(kind)
    world.offer(HARD)
    world.run_out()


RULES = {
    "R1 urgent": (an_urgent_job_is_in_time, {"urgent": lambda self, view: None}),
    "R2 memory": (memory_is_never_exceeded, {"admitted_by_memory": lambda self, jobs: len(jobs)}),
    "R3 ripe": (a_full_deep_queue_goes_first, {"ripe": lambda self, view: None}),
    "R3 ripe, by bypass": (a_deep_job_is_not_held_for_ever, {"ripe": lambda self, view: None}),
    "R4 pressure": (survivors_gather_under_pressure, {"pressed": lambda self, view: None}),
    "R5 rest": (the_device_is_never_idle, {"deepest": lambda self, view: None}),
    "bypass counter": (a_deep_job_is_not_held_for_ever, {"count_bypass": lambda self, exit: None}),
}


@pytest.mark.parametrize("name", RULES)
def test_rule(name):
    RULES[name][0](Scheduler)


@pytest.mark.parametrize("name", RULES)
def test_no_rule_can_be_left_out(name):
    task, without = RULES[name]
    with pytest.raises(AssertionError):
        task(type("Mutant", (Scheduler,), without))


# ---- Laws that need a long run


def backlog(kind=Scheduler, **options):
    options = {"max_queue": 10**6, "max_per_client": 10**6, "max_parked": 10**9} | options
    return kind(3, [4, 3, 2], Costs(LINES), [3, 7, 0], **options)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 3.0)])
def test_backlogged_clients_take_turns(weights):
    """I10: launches of equal clients differ by at most B_1 + 1 over any interval; by cost if budgets differ."""
    scheduler, owner = backlog(), {}
    for client, weight in zip("ab", weights, strict=True):
        for _ in range(120 if client == "a" else 60):
            owner[scheduler.offer(0.0, client, Applied((0.0, 0.0), 3), weight=weight)] = client
    turns, now = [], 0.0
    while len(turns) < 80:
        batch = scheduler.next_batch(now)
        turns += [owner[job] for job in batch.jobs]
        scheduler.done(now, batch, [1.0] * len(batch.jobs))
    for start in range(len(turns)):
        for end in range(start + 1, len(turns) + 1):
            a, b = turns[start:end].count("a"), turns[start:end].count("b")
            assert abs(a * weights[0] - b * weights[1]) <= (4 + 1) * max(weights)


def test_a_single_image_does_not_wait_behind_a_flood():
    scheduler = backlog()
    for _ in range(500):
        scheduler.offer(0.0, "flood", Applied((0.0, 0.0), 3))
    for now in range(30):
        batch = scheduler.next_batch(float(now))
        scheduler.done(float(now), batch, [1.0] * len(batch.jobs))
    single = scheduler.offer(30.0, "single", Applied((0.0, 0.0), 3))
    assert single in scheduler.next_batch(30.0).jobs


@pytest.mark.parametrize("seed", range(3))
def test_how_long_a_deep_job_waits(seed):
    """I6: at the head of Q_3 at most h max(s_1, s_2) + s_max, of Q_2 h s_1 + ceil(parked / B) s_3 + s_max."""
    hold, chance, now = 3, random.Random(seed), 0.0
    scheduler = backlog(hold=hold, max_parked=7 * 20)
    s1, s2, s3 = (line(most) for line, most in zip(LINES, (4, 3, 2), strict=True))
    bounds = {2: hold * s1 + math.ceil(20 / 2) * s3 + max(s1, s2, s3), 3: hold * max(s1, s2) + max(s1, s2, s3)}
    since, longest = {2: (None, 0.0), 3: (None, 0.0)}, {2: 0.0, 3: 0.0}
    for _ in range(600):
        for _ in range(chance.choice([0, 3, 6])):
            scheduler.offer(now, "a", Applied((0.5, 0.5), 3))
        for exit in (2, 3):
            head = scheduler.queues[exit - 1][0].id if scheduler.queues[exit - 1] else None
            if head != since[exit][0]:
                since[exit] = (head, now)
        if (batch := scheduler.next_batch(now)) is None:
            now += 5.0
            continue
        if batch.exit in since and since[batch.exit][0] in batch.jobs:
            longest[batch.exit] = max(longest[batch.exit], now - since[batch.exit][1])
        now += scheduler.costs(batch.exit, len(batch.jobs))
        scheduler.done(now, batch, [float(chance.random() < 0.6) for _ in batch.jobs])
    assert longest[2] <= bounds[2] and longest[3] <= bounds[3]
    assert min(longest.values()) > 0  # somebody was held


def test_more_budget_never_stops_an_image_earlier():
    """I11, for all thresholds that rise together."""
    chance = random.Random(0)
    for _ in range(300):
        low = [chance.random() for _ in range(2)]
        high = [min(1.0, t + chance.random() * chance.randint(0, 1)) for t in low]
        image = [chance.random() for _ in range(3)]
        assert decide(image, low, 3).exit <= decide(image, high, 3).exit


# ---- Admission


def test_every_reason_for_a_refusal():
    world = World(max_queue=3, max_per_client=2)
    assert world.offer(HARD, patience=1.0) is None  # would_miss_deadline: exit 1 takes 5 s
    assert world.offer(HARD) == 0 and world.offer(HARD) == 1
    assert world.offer(HARD) is None  # client_limit
    assert world.offer(HARD, client="b") == 2
    assert world.offer(HARD, client="c") is None  # queue_full
    world.drain()
    assert world.offer(HARD, client="c") is None  # draining
    told = [answer for answer in world.answers if isinstance(answer, tuple)]
    assert [reason for reason, _ in told] == ["would_miss_deadline", "client_limit", "queue_full", "draining"]
    world.run_out()


def test_contradictory_limits_are_refused():
    """I17: with them a job could wait for ever."""
    with pytest.raises(ValueError, match=r"max_parked=6 .* less than the 7"):
        World(max_parked=6)
    with pytest.raises(ValueError, match="max_queue=0"):
        World(max_queue=0)
    with pytest.raises(ValueError, match="batch_limits"):
        World(limits=(0, 1, 1))


def test_refused_is_an_exception_with_reason_and_seconds():
    scheduler = backlog(max_queue=1)
    scheduler.offer(0.0, "a", Applied((0.5, 0.5), 3))
    with pytest.raises(Refused) as caught:
        scheduler.offer(0.0, "b", Applied((0.5, 0.5), 3))
    assert caught.value.reason == "queue_full" and caught.value.retry_after >= 1


# ---- Faults


def test_only_the_poisonous_job_fails():
    """I16, F13: its batch is tried again one by one."""
    world = World(max_parked=999)
    jobs = [world.offer(Image((1.0, 1.0, 1.0), poison=int(number == 2))) for number in range(4)]
    world.run_out()
    ends = [world.books[job].terminal[0] for job in jobs]
    assert [type(end) for end in ends] == [Answered, Answered, Failed, Answered]
    assert ends[2].reason == "error" and [world.books[job].tries[1] for job in jobs] == [2, 2, 2, 2]


def test_poison_in_a_deep_exit():
    world = World()
    jobs = [world.offer(Image((0.0, 0.0, 1.0), poison=3 * (number == 1))) for number in range(3)]
    world.run_out()
    assert [type(world.books[job].terminal[0]) for job in jobs] == [Answered, Failed, Answered]


def test_out_of_memory_halves_the_batch():
    """F15"""
    world = World(fits=(1, 9, 9))
    jobs = [world.offer(EASY) for _ in range(4)]
    world.run_out()
    assert world.scheduler.batch_limits == [1, 3, 2]
    assert all(isinstance(world.books[job].terminal[0], Answered) for job in jobs)


def test_out_of_memory_with_a_single_image_fails_it():
    world = World(fits=(0, 9, 9))
    job = world.offer(EASY)
    world.run_out()
    end = world.books[job].terminal[0]
    assert end.reason == "out_of_memory" and isinstance(end.error, OutOfMemory)


@pytest.mark.parametrize(("confidences", "end"), [((math.nan, 1.0, 1.0), "confident"), ((0.0, 0.0, math.nan), "not_finite")])
def test_nan_is_never_sure(confidences, end):
    """F14: it goes on; at the last exit there is no answer."""
    world = World()
    job = world.offer(Image(confidences), level=0 if end == "confident" else 4)
    world.run_out()
    told = world.books[job].terminal[0]
    assert told == (Answered(job, "confident", 2) if end == "confident" else Failed(job, "not_finite"))


def test_deadlines_before_between_and_during():
    """F17: none without an exit, else the best so far, when it is due, also during a batch; the late result is dropped."""
    world = World()
    first = world.offer(HARD, patience=20.0)
    fails = world.offer(HARD, patience=20.0, on_deadline="fail")
    world.launch()
    world.finish()  # at 6
    world.launch()
    world.finish()  # exit 2 ends at 13
    world.launch()  # exit 3 would end at 24
    world.wait(30.0)
    assert world.now == 24.0 and world.scheduler.next_timer() is None
    assert world.books[first].terminal == [Answered(first, "deadline", 2)]
    assert world.books[fails].terminal == [Expired(fails)]
    assert world.scheduler.reserved == 14  # until the batch ends: its memory is in use
    assert world.finish() == [] and world.scheduler.reserved == 0
    waits = world.offer(HARD, patience=6.0)
    world.wait(5.9)
    assert world.books[waits].live
    world.wait(0.1)
    assert world.books[waits].terminal == [Expired(waits)]


def test_cancelled_in_the_middle_of_a_batch():
    """F7: its result is dropped, and its memory comes back when the batch ends."""
    world = World()
    one, two = world.offer(HARD), world.offer(HARD)
    world.launch()
    world.cancel(one)
    assert world.scheduler.reserved == 14
    world.finish()
    assert world.scheduler.reserved == 7 and len(world.books[two].passed) == 1
    world.run_out()


def test_degraded_only_with_leave():
    """I2: by operator and request, and only while there is load."""
    from deploy.serve.scheduler_world import BROWN_OUT

    world = World(brown_out=BROWN_OUT, brown_out_at=2)
    jobs = [world.offer(HARD, degrade=degrade) for degrade in (True, False, True, False)]
    world.run_out()
    assert [world.books[job].terminal[0].why for job in jobs] == ["last", "last", "degraded", "last"]


def test_waiting_for_company():
    """batch_wait: exit 1 waits for a profitable batch, so long at most."""
    scheduler = backlog(batch_wait=10.0)
    scheduler.offer(0.0, "a", Applied((0.0, 0.0), 3))
    assert scheduler.next_batch(0.0) is None and scheduler.next_timer() == 10.0
    for _ in range(3):
        scheduler.offer(4.0, "a", Applied((0.0, 0.0), 3))
    assert len(scheduler.next_batch(4.0).jobs) == 4
    alone = backlog(batch_wait=10.0)
    alone.offer(0.0, "a", Applied((0.0, 0.0), 3))
    assert alone.next_batch(10.0).jobs == (0,)


def test_deadlines_of_jobs_that_are_over_are_forgotten():
    """They may lie a day ahead, and a client may send many."""
    scheduler = backlog()
    for at in range(1000):
        job = scheduler.offer(float(at), "a", Applied((0.0, 0.0), 3), deadline=at + 86_400.0)
        scheduler.cancel(job)
    assert len(scheduler._timers) < 40
    waiting = [scheduler.offer(1000.0, "a", Applied((0.0, 0.0), 3), deadline=2000.0 + at) for at in range(30)]
    assert scheduler.next_timer() == 2000.0
    assert [event.job for event in scheduler.tick(1e6)] == waiting


def test_one_step_at_a_time():
    scheduler = backlog()
    scheduler.offer(0.0, "a", Applied((0.5, 0.5), 3))
    batch = scheduler.next_batch(0.0)
    with pytest.raises(RuntimeError, match="exit 1 is running"):
        scheduler.next_batch(1.0)
    scheduler.done(1.0, batch, [1.0])
    with pytest.raises(RuntimeError, match="not running"):
        scheduler.done(1.0, batch, [1.0])
