"""The laws of the scheduler, tried by Hypothesis: any order of offers, steps, cancellations, waiting and draining."""

import os
import sys

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from deploy.serve.scheduler_world import BROWN_OUT, LEVELS, Image, World

CONFIDENCES = st.sampled_from([0.0, 0.3, 0.5, 0.65, 0.8, 0.95, 1.0, float("nan")])
IMAGES = st.builds(Image, st.tuples(CONFIDENCES, CONFIDENCES, CONFIDENCES), st.sampled_from([0, 0, 0, 0, 1, 2, 3]))
PHASES = (Phase.explicit, Phase.generate, *([Phase.shrink] if "SHRINK" in os.environ else []))  # shrinking takes minutes


class SchedulerMachine(RuleBasedStateMachine):
    """See `scheduler_world`, where every law is checked after every step."""

    @initialize(
        limits=st.sampled_from([(4, 3, 2), (3, 3, 3), (1, 1, 1), (2, 4), (3,)]),
        parked=st.sampled_from([7, 14, 21, 1000]),
        hold=st.integers(1, 3),
        fits=st.sampled_from([9, 9, 2, 1]),
        brown_out=st.booleans(),
    )
    def begin(self, limits, parked, hold, fits, brown_out):
        carried = (*(3, 7)[: len(limits) - 1], 0)
        degraded = {"brown_out": BROWN_OUT, "brown_out_at": 3} if brown_out and len(limits) == 3 else {}
        self.world = World(
            limits=limits, state_bytes=carried, max_parked=parked, hold=hold, fits=(fits,) * len(limits), **degraded
        )

    @rule(
        image=IMAGES,
        client=st.sampled_from("abc"),
        level=st.integers(0, len(LEVELS) - 1),
        cap=st.integers(1, 3),
        patience=st.sampled_from([None, None, None, 6.0, 15.0, 40.0, 90.0]),
        on_deadline=st.sampled_from(["best", "fail"]),
        degrade=st.booleans(),
        copies=st.integers(1, 3),
    )
    def offer(self, image, copies, **how):
        for _ in range(copies):
            self.world.offer(image, **how)

    @precondition(lambda self: self.world.batch is None)
    @rule()
    def launch(self):
        self.world.launch()

    @precondition(lambda self: self.world.batch is not None)
    @rule(then_launch=st.booleans())
    def finish(self, then_launch):
        self.world.finish()
        if then_launch:
            self.world.launch()

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, 30.0]))
    def wait(self, seconds):
        self.world.wait(seconds)

    @precondition(lambda self: self.world.books)
    @rule(which=st.integers(0, 10**6))
    def cancel(self, which):
        self.world.cancel(list(self.world.books)[which % len(self.world.books)])

    @precondition(lambda self: len(self.world.books) > 8)
    @rule()
    def drain(self):
        self.world.drain()

    def teardown(self):
        if hasattr(self, "world") and sys.exc_info()[0] is None:  # else a law is broken already
            self.world.run_out()
            self.world.check_repeatable()


def run(machine, examples, steps=30):
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=chosen)


def test_laws_hold():
    run(SchedulerMachine, 150)


@pytest.mark.slow
def test_laws_hold_in_many_examples():
    """Ten thousand; EXAMPLES=100000 for a night."""
    run(SchedulerMachine, int(os.environ.get("EXAMPLES", "10000")), steps=50)
