"""What is shown where."""

import io

from rich.console import Console

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


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_choice():
    assert type(choose_progress(stream=io.StringIO())) is Lines
    assert type(choose_progress(stream=Terminal())) is Bar
    assert type(choose_progress(quiet=True, stream=Terminal())) is Progress
