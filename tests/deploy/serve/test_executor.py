"""The thread that owns the model: batches are put together from kept and parked states, and a failure loses nothing."""

import queue
import threading

import pytest

from deploy.serve.stub import PATIENCE, StubCascade, StubImage
from dynavit.deploy.serve.executor import Aside, Executor, Tidy, Work
from dynavit.deploy.serve.jobs import OutOfMemory

IMAGES = {job: StubImage((job / 10, job / 10, job / 10)) for job in range(9)}


class Started:
    """An executor, and its results one by one."""

    def __init__(self):
        self.model, self.results = StubCascade(), queue.Queue()
        self.executor = Executor(self.model, self.results.put)

    def __enter__(self):
        self.executor.start()
        return self

    def __exit__(self, *_):
        self.model.gate.set()
        self.executor.stop()

    def run(self, work):
        self.executor.run(work)
        return self.results.get(timeout=PATIENCE)

    def begin(self, *jobs, **how):
        return self.run(Work(1, jobs, {job: IMAGES[job] for job in jobs}, **how))


def test_survivors_are_regrouped_and_results_are_in_order():
    with Started() as it:
        assert it.begin(1, 2, 3).confidences.tolist() == [0.1, 0.2, 0.3]
        assert it.begin(4, 5, kept=(3, 1)).confidences.tolist() == [0.4, 0.5]  # 1 and 3 wait
        assert sorted(it.executor.states) == [1, 3]
        mixed = it.run(Work(2, (1, 4, 3), kept=(4, 5)))  # 4 goes on at once, 5 waits
        assert mixed.confidences.tolist() == [0.1, 0.4, 0.3] and sorted(it.executor.states) == [5]
        last = it.run(Work(3, (4, 1), kept=(1, 4), dropped=(5,)))
        assert last.confidences.tolist() == [0.4, 0.1] and it.executor.states == {}
        assert [exit for exit, _ in it.model.batches] == [1, 1, 2, 3]
        assert it.model.threads == {it.executor._thread.ident}
        assert threading.get_ident() not in it.model.threads


def test_a_failed_step_keeps_its_states():
    with Started() as it:
        it.begin(1, 2)
        parked = it.begin(3, kept=(1, 2))
        assert parked.error is None
        poison = StubImage((0.1, 0.1, 0.1), poison=2)
        it.executor.states[1] = type(it.executor.states[1])(2, (poison,))
        failed = it.run(Work(2, (1, 2)))
        assert isinstance(failed.error, RuntimeError) and failed.confidences is None
        assert sorted(it.executor.states) == [1, 2]
        assert it.run(Work(2, (2,))).confidences.tolist() == [0.2]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("[enforce] DefaultCPUAllocator: not enough memory")])
def test_out_of_memory_is_told_apart(error):
    with Started() as it:
        found = it.run(Work(1, (1,), {1: StubImage((1.0,), poison=1, error=error)})).error
        assert isinstance(found, OutOfMemory) and found.__cause__ is error


def test_tidy_frees_what_nobody_wants():
    with Started() as it:
        it.begin(1, 2)
        it.begin(3, kept=(1, 2))
        it.executor.run(Tidy((1, 2)))
        assert it.run(Aside(lambda: dict(it.executor.states))).value == {}
        assert it.executor._last == ((), None)


def test_something_aside():
    with Started() as it:
        assert it.run(Aside(lambda: 41 + 1)).value == 42
        assert isinstance(it.run(Aside(lambda: 1 / 0)).error, ZeroDivisionError)
        assert it.begin(1).error is None


def test_signs_of_life():
    """F16: a thread that hangs or has died is found out."""
    with Started() as it:
        assert it.executor.alive(PATIENCE)
        it.model.gate.clear()
        it.executor.run(Work(1, (1,), {1: IMAGES[1]}))
        clock = it.executor.clock
        it.executor.clock = lambda: clock() + 2 * PATIENCE
        assert not it.executor.alive(PATIENCE)
        it.executor.clock = clock
    with Started() as it:
        it.executor.run(Work(1, (1,), {1: StubImage((1.0,), poison=1, error=SystemExit(3))}))
        it.executor._thread.join(PATIENCE)
        assert not it.executor.alive(1e9) and isinstance(it.executor.died, SystemExit)
