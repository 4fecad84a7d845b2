"""Seconds of the model and of the loader, by a clock that moves when the test says so."""

import pytest
from torch import nn

from dynavit.engine import pace
from dynavit.engine.evaluate import evaluate
from dynavit.engine.pace import Pace
from dynavit.engine.processes import Processes
from engine.tiny import TinyTask, eval_loader


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(pace.time, "perf_counter", lambda: now[0])
    return now


def paced(clock, loading, computing, batch_size):
    """The report on 21 samples when the batches take so long to load, and to compute."""
    task, loader, of_batch = TinyTask(), eval_loader(batch_size=batch_size), iter(computing)

    class Slow:
        def epoch(self):
            for batches, seconds in zip(loader.epoch(), loading, strict=True):
                clock[0] += seconds
                yield batches

    class Model(nn.Module):
        def forward(self, inputs):
            clock[0] += next(of_batch)
            return task.model(inputs)

    evaluator, found = task.evaluator(), Pace()
    evaluator.model = Model()
    evaluate(task, Slow(), Processes(), evaluator=evaluator, pace=found)
    return found.report(Processes())


def test_the_models_speed_has_neither_loading_nor_the_first_batch_in_it(clock):
    found = paced(clock, loading=[10.0, 1.0, 1.0], computing=[5.0, 0.25, 0.5], batch_size=8)
    assert found["model_images_per_second"] == pytest.approx((8 + 5) / 0.75)
    assert found["images_per_second_with_loading"] == pytest.approx(21 / 17.75)
    assert found["seconds"] == pytest.approx({"model": 5.75, "loading": 12.0, "whole": 17.75})


def test_a_single_batch_is_all_there_is(clock):
    found = paced(clock, loading=[10.0], computing=[7.0], batch_size=21)
    assert found["model_images_per_second"] == pytest.approx(3.0)
    assert found["images_per_second_with_loading"] == pytest.approx(21 / 17)
