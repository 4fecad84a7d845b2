"""What is shown where."""

import io
import re

import torch
from rich.console import Console

from dynavit.common.metric import Metric
from dynavit.engine import progress
from dynavit.engine.progress import Bar, Lines, Progress, choose_progress

TRAIN = {"kind": "train", "step": 20, "epoch": 0.5, "loss": 1.2345678, "lr": 1e-3, "time": {"images_per_second": 285.4}}
EVAL = {
    "kind": "eval",
    "split": "val",
    "weights": "ema",
    "step": 40,
    "epoch": 1.0,
    "loss": None,
    "top1": 0.75,
    "per_class": [1],
}


def test_plain_lines_are_few_but_every_evaluation_is_there(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    lines = Lines(stream)
    lines.begin(0, 100)
    for second in range(25):
        now[0] = 100.0 + second
        lines.step(second)
        lines.logged({**TRAIN, "step": second})
        if second in (3, 4):
            lines.logged(EVAL)
    lines.note("a broken image")
    lines.end()
    assert stream.getvalue().splitlines() == [
        "step 0/100, epoch 0.5: loss 1.235, lr 0.001, 285.4 images/s",
        "step 40/100, epoch 1: val (ema): loss nan, top1 0.75",
        "step 40/100, epoch 1: val (ema): loss nan, top1 0.75",
        "step 10/100, epoch 0.5: loss 1.235, lr 0.001, 285.4 images/s",
        "step 20/100, epoch 0.5: loss 1.235, lr 0.001, 285.4 images/s",
        "note: a broken image",
    ]


def test_a_terminal_gets_a_bar():
    stream = io.StringIO()
    bar = Bar(Console(file=stream, force_terminal=True, width=160))
    bar.begin(2, 40)
    bar.step(30)
    bar.logged(TRAIN)
    bar.logged(EVAL)
    bar.note("a [red] image")
    bar.end()
    shown = stream.getvalue()
    for part in ("30/40", "loss 1.235", "285.4 images/s", "top1 0.75", "note: a [red] image"):
        assert part in shown


def test_a_bar_fits_80_columns_and_shows_the_loss_from_the_first_step():
    stream = io.StringIO()
    bar = Bar(Console(file=stream, force_terminal=True, width=80, color_system=None))
    bar.metrics = [Metric("top1", "top-1", percent=True)]

    def shown():
        bar.bar.refresh()
        return lines()[-1]

    def lines():
        return re.split(r"[\n\r]+", re.sub(r"\x1b\[[\d?;]*[A-Za-z]", "", stream.getvalue()).rstrip())

    bar.begin(0, 400_000)
    bar.loss = torch.tensor(2.302585)
    bar.step(1)
    assert "1/400000" in shown() and "loss 2.303" in shown()
    bar.logged({**TRAIN, "step": 399_999, "epoch": 299.9})
    bar.evaluating(3, 1200)
    assert "validating 3/1200" in shown() and "epoch 299.9" in shown() and "loss 1.235" in shown()
    bar.logged({**EVAL, "epoch": 300.0})
    bar.evaluating(1200, 1200)
    assert "val top-1 75.00%" in shown()
    assert max(map(len, lines())) <= 80
    bar.end()


def test_lines_tell_of_slow_steps_before_the_first_is_logged(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    lines = Lines(stream)
    lines.begin(0, 100)
    for step in range(1, 4):
        now[0] += 6.0
        lines.loss = torch.tensor(2.5)
        lines.step(step)
    assert stream.getvalue() == "step 2/100: loss 2.5\n"


def test_an_evaluation_alone_has_a_bar_of_its_own():
    stream = io.StringIO()
    bar = Bar(Console(file=stream, force_terminal=True, width=80, color_system=None))
    for done in (1, 2, 3):
        bar.evaluating(done, 3)
    assert "evaluating" in stream.getvalue() and "3/3" in stream.getvalue() and not bar.bar.live.is_started


def test_lines_tell_of_long_evaluations(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    lines = Lines(stream)
    for done in range(1, 6):
        now[0] += 4.0
        lines.evaluating(done, 5)
    assert stream.getvalue() == "evaluating: 4 of 5 batches\n"


def test_the_time_of_an_epoch_is_told_once(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    lines = Lines(stream)
    lines.steps_per_epoch = 60
    lines.begin(40, 160)
    for step in range(41, 60):
        now[0] += 30.0 if step == 41 else 2.0  # the first pays for what happens once
        lines.step(step)
    assert stream.getvalue() == "about 2 min per epoch without validation, 4 min to go\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_choice():
    assert type(choose_progress(stream=io.StringIO())) is Lines
    assert type(choose_progress(stream=Terminal())) is Bar
    assert type(choose_progress(quiet=True, stream=Terminal())) is Progress
