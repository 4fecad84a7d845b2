"""Scheduler, executor and event loop together: every image gets its own answer, whatever happens to the others."""

import asyncio
import random
import time
from collections import Counter

import pytest

from deploy.serve.stub import EXITS, PATIENCE, SURE, StubCascade, StubImage, stub_scheduler
from dynavit.deploy.serve.budget import decide
from dynavit.deploy.serve.curve import Applied
from dynavit.deploy.serve.engine import Engine, EngineStopped, JobExpired, JobFailed, Observer
from dynavit.deploy.serve.jobs import Refused

EASY, HARD = StubImage((1.0, 1.0, 1.0)), StubImage((0.0, 0.0, 1.0))


class Counting(Observer):
    def __init__(self):
        self.counts, self.steps = Counter(), []

    def refused(self, reason):
        self.counts["refused"] += 1

    def answered(self, outcome):
        self.counts[outcome.why] += 1

    def ended(self, how):
        self.counts[how] += 1

    def stepped(self, batch, seconds, confidences):
        self.steps.append((batch.exit, len(batch.jobs)))


def running(task, **options):
    """Run `task(engine)` inside an event loop; afterwards nothing is left behind."""
    hang_after = options.pop("hang_after", 10.0)

    async def main():
        engine = Engine(StubCascade(), stub_scheduler(**options), observer=Counting(), hang_after=hang_after)
        engine.start()
        try:
            return await asyncio.wait_for(task(engine), PATIENCE)
        finally:
            engine.served.gate.set()
            engine.stop()

    return asyncio.run(main())


async def until(condition):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never happened")


def test_answers_are_those_of_the_rule():
    """I12: of 150 images with their own budgets, in any company."""
    chance = random.Random(0)

    async def task(engine):
        images, budgets = [], []
        for _ in range(150):
            images.append(StubImage(tuple(chance.random() for _ in range(EXITS))))
            budgets.append(Applied((chance.random(), chance.random()), chance.randint(1, 3)))
        calls = [
            engine.submit(image, applied, str(at % 5)) for at, (image, applied) in enumerate(zip(images, budgets, strict=True))
        ]
        for image, applied, outcome in zip(images, budgets, await asyncio.gather(*calls), strict=True):
            assert (outcome.exit, outcome.why) == decide(image.confidences, applied.thresholds, applied.max_exit)
            assert [answer.confidence for answer in outcome.exits] == list(image.confidences[: outcome.exit])
            assert outcome.answer.label == int(image.confidences[outcome.exit - 1] > 0.5)
            assert len(outcome.batch) == outcome.exit and outcome.compute_ms >= 0 <= outcome.queue_ms
        assert sum(engine.observer.counts.values()) == 150
        assert engine.scheduler.snapshot()["regrouped"][1] > 0  # they did meet
        await until(lambda: not engine.executor.states)

    running(task, max_queue=500, max_per_client=500)


def test_images_that_come_together_run_together():
    async def task(engine):
        outcomes = await asyncio.gather(*[engine.submit(EASY, SURE) for _ in range(4)])
        assert [outcome.batch for outcome in outcomes] == [[4]] * 4

    running(task)


def test_cancelled_calls_leave_nothing():
    """F7: waiting and running; the others are answered."""

    async def task(engine):
        engine.served.gate.clear()
        calls = [asyncio.ensure_future(engine.submit(HARD, SURE, str(at))) for at in range(8)]
        await until(lambda: engine.scheduler.running is not None)
        for call in (calls[0], calls[7]):  # in the batch, in the queue
            call.cancel()
        await asyncio.sleep(0)
        engine.served.gate.set()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each).__name__ for each in done] == ["CancelledError", *["Outcome"] * 6, "CancelledError"]
        assert engine.observer.counts == {"last": 6, "cancelled": 2}
        await until(lambda: not engine.executor.states and engine.executor._last[1] is None)
        assert engine.scheduler.snapshot()["reserved_bytes"] == 0 and not engine._waiters

    running(task)


def test_deadlines_fire_in_the_middle_of_a_step():
    """F17: the answer comes when it is due, not when the device is free."""

    async def task(engine):
        def at_exit_2():
            return engine.scheduler.running is not None and engine.scheduler.running.exit == 2

        engine.served.gate.clear()
        engine.served.held = {2}
        for patience in (0.2, 1.0, 5.0):  # a busy machine needs longer to get to exit 2
            first = asyncio.ensure_future(engine.submit(HARD, SURE, deadline=engine.clock() + patience))
            await until(lambda first=first: first.done() or at_exit_2())
            if not first.done():
                break
        none = asyncio.ensure_future(engine.submit(HARD, SURE, deadline=engine.clock() + patience))
        outcome = await first
        assert (outcome.why, outcome.exit, len(outcome.exits)) == ("deadline", 1, 1)
        with pytest.raises(JobExpired):
            await none
        assert at_exit_2()  # nobody waited for the end of the step
        engine.served.gate.set()
        assert (await engine.submit(EASY, SURE)).exit == 1  # the late result was dropped

    running(task)


def test_only_the_poisonous_image_fails():
    """F13, and NaN at the last exit (F14)."""

    async def task(engine):
        images = [EASY, StubImage((1.0, 1.0, 1.0), poison=1), HARD, StubImage((0.0, 0.0, float("nan")))]
        done = await asyncio.gather(*[engine.submit(image, SURE) for image in images], return_exceptions=True)
        assert [type(each).__name__ for each in done] == ["Outcome", "JobFailed", "Outcome", "JobFailed"]
        assert [each.reason for each in done if isinstance(each, JobFailed)] == ["error", "not_finite"]
        assert engine.alive() and (await engine.submit(HARD, SURE)).exit == 3

    running(task)


def test_full_queue_and_drain():
    async def task(engine):
        engine.served.gate.clear()
        calls = [asyncio.ensure_future(engine.submit(HARD, SURE, str(at))) for at in range(6)]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="queue_full"):
            await engine.submit(HARD, SURE)
        assert not await engine.drain(0.01)
        with pytest.raises(Refused, match="draining"):
            await engine.submit(HARD, SURE)
        engine.served.gate.set()
        assert await engine.drain(PATIENCE)
        assert [call.result().why for call in calls] == ["last"] * 6
        assert engine.observer.counts == {"refused": 2, "last": 6}

    running(task, max_queue=6)


def test_stop_answers_everybody():
    async def task(engine):
        engine.served.gate.clear()
        calls = [asyncio.ensure_future(engine.submit(HARD, SURE)) for _ in range(6)]
        aside = asyncio.ensure_future(engine.aside(lambda: 1))
        await until(lambda: engine.scheduler.running is not None)
        engine.stop(patience=0)
        for call in (*calls, aside):
            with pytest.raises(EngineStopped):
                await call
        with pytest.raises(EngineStopped):
            await engine.submit(HARD, SURE)
        assert not engine.alive()

    running(task)


@pytest.mark.parametrize("how", ["hangs", "dies"])
def test_an_executor_that_hangs_or_dies(how):
    """F16"""

    async def task(engine):
        told = asyncio.Event()
        engine.on_death = lambda error: told.set()
        if how == "hangs":
            engine.served.gate.clear()
        image = StubImage((1.0,) * 3, poison=1, error=SystemExit(1)) if how == "dies" else EASY
        calls = [asyncio.ensure_future(engine.submit(image, SURE)) for _ in range(6)]
        await asyncio.wait_for(told.wait(), PATIENCE)
        for call in calls:
            with pytest.raises(EngineStopped):
                await call
        assert not engine.alive()

    running(task, hang_after=0.8)


def test_an_idle_executor_gives_signs_of_life_in_time():
    """Also where a short time without one counts as death."""
    for hang_after in (0.1, 0.5, 10.0):
        engine = Engine(StubCascade(), stub_scheduler(), hang_after=hang_after)
        assert engine.executor.idle <= hang_after / 4


def test_aside_waits_for_its_turn():
    """Images go first, but not for ever."""

    async def task(engine):
        engine.served.gate.clear()
        first = asyncio.ensure_future(engine.submit(EASY, SURE))
        await until(lambda: engine.scheduler.running is not None)
        later = [asyncio.ensure_future(engine.submit(EASY, SURE)) for _ in range(4)]
        aside = asyncio.ensure_future(engine.aside(lambda: len(engine.served.batches), patience=30.0))
        await asyncio.sleep(0)
        engine.served.gate.set()
        assert await aside == 2  # both batches of images were before it
        await asyncio.gather(first, *later)
        with pytest.raises(ZeroDivisionError):
            await engine.aside(lambda: 1 / 0)
        assert (await engine.submit(EASY, SURE)).exit == 1

    running(task)


def test_costs_are_refreshed():
    async def task(engine):
        before = engine.costs(1, 1)
        for _ in range(5):
            await engine.submit(EASY, SURE)
        assert engine.costs(1, 1) != before

    running(task)
