"""Progress of a run as a person sees it: a bar on a terminal, a line now and then in a file."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from rich import progress as rich_progress
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from ..common.labelled import labelled_lines
from ..common.metric import Metric

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_LOSSES = 1.0
WIDE = 120  # columns of a terminal from which there is room for everything
SECONDS_TO_ESTIMATE = 3.0  # of training, before its length is told; what ends sooner needs no telling


class Progress:
    """The events of a long job, in the order they happen. This one shows nothing; subclasses show them.

    Attributes:
        metrics: of the task that is trained, the main one first; set before `begin`.
        steps_per_epoch: of a training; set before `begin`.
        loss: of the step before `step`, a tensor; looking at it may make an accelerator wait.
    """

    metrics: Sequence[Metric] = ()
    steps_per_epoch: int | None = None
    loss: Any = None

    def overview(self, facts: Callable[[], Mapping[str, str]]) -> None:
        """Facts about what begins: data, model, device, where it writes. They are only asked for where they are shown."""

    def begin(self, done: int, total: int) -> None:
        """Steps done before, and in all."""

    def step(self, done: int) -> None:
        """After every step: must cost nothing."""

    def evaluating(self, done: int, total: int) -> None:
        """After every batch of an evaluation, within a training or alone."""

    def logged(self, record: dict[str, Any]) -> None:
        """A train or eval line of metrics.jsonl."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def end(self) -> None:
        """Also after an exception."""


class Shown(Progress):
    """A progress that is seen; subclasses say how a line is shown."""

    estimate: "Estimate | None" = None
    begun = False  # whether the overview was shown

    def overview(self, facts: Callable[[], Mapping[str, str]]) -> None:
        if self.begun:  # a verb within another, such as the evaluation at the end of a training
            return
        self.begun = True
        for line in labelled_lines(facts()):
            self.line(line)

    def begin(self, done: int, total: int) -> None:
        self.estimate = Estimate(done, total, self.steps_per_epoch) if self.steps_per_epoch else None

    def step(self, done: int) -> None:
        if self.estimate is not None and (text := self.estimate.after(done)):
            self.estimate = None
            self.line(text)

    def note(self, text: str) -> None:
        self.line(f"note: {text}")

    def line(self, text: str) -> None:
        raise NotImplementedError


class Estimate:
    """The time of an epoch, told once, by the first steps after the very first, which also pays for what happens once."""

    def __init__(self, done: int, total: int, steps_per_epoch: int) -> None:
        self.done, self.total, self.steps_per_epoch = done, total, steps_per_epoch
        self.began: float | None = None

    def after(self, done: int) -> str | None:
        """A line about it, as soon as there is something to go by."""
        now = time.monotonic()
        if self.began is None:
            self.began, self.done = now, done
        spent, steps = now - self.began, done - self.done
        if spent < SECONDS_TO_ESTIMATE or steps < 2:
            return None
        epoch, left = spent / steps * self.steps_per_epoch, spent / steps * (self.total - done)
        return f"about {duration(epoch)} per epoch without validation, {duration(left)} to go"


def duration(seconds: float) -> str:
    """
    >>> duration(45), duration(600), duration(9000), duration(400000)
    ('45 s', '10 min', '2.5 h', '4.6 days')
    """
    for unit, length in (("days", 86400), ("h", 3600)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


class Lines(Shown):
    """Plain lines: every evaluation and note, and at most one line in ten seconds about training."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.total, self.next_line, self.began, self.next_evaluating = 0, 0.0, 0.0, 0.0

    def begin(self, done: int, total: int) -> None:
        super().begin(done, total)
        self.total, self.next_line, self.began = total, 0.0, time.monotonic()

    def step(self, done: int) -> None:
        super().step(done)
        now = time.monotonic()
        nothing_logged = not self.next_line
        if nothing_logged and self.loss is not None and now >= self.began + SECONDS_BETWEEN_LINES:
            self.next_line = now + SECONDS_BETWEEN_LINES
            self.line(f"step {done}/{self.total}: loss {_number(float(self.loss))}")

    def evaluating(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done == 1:
            self.next_evaluating = now + SECONDS_BETWEEN_LINES
        elif now >= self.next_evaluating:
            self.next_evaluating = now + SECONDS_BETWEEN_LINES
            self.line(f"evaluating: {done} of {total} batches")

    def logged(self, record: dict[str, Any]) -> None:
        now = time.monotonic()
        if record["kind"] == "train" and now < self.next_line:
            return
        if record["kind"] == "train":
            self.next_line = now + SECONDS_BETWEEN_LINES
        self.line(f"step {record['step']}/{self.total}, epoch {record['epoch']:.4g}: {summary(record)}")

    def line(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()


class Bar(Shown):
    """A progress bar with time left, the loss, and the last evaluation; in a wide terminal also learning rate and images/s."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.fields[epoch]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[train]}"),
            TextColumn("[bold]{task.fields[val]}"),
        )
        # Twice a second: drawing takes time from the training, which runs in the same interpreter.
        self.bar = rich_progress.Progress(*columns, console=console, refresh_per_second=2, expand=True)
        self.task = self.bar.add_task("train", total=None, visible=False, epoch="", train="", val="")
        self.brief = console.width < WIDE
        self.next_loss, self.last_val, self.training = 0.0, "", False

    def begin(self, done: int, total: int) -> None:
        super().begin(done, total)
        self.bar.update(self.task, completed=done, total=total, visible=True)
        self.bar.start()
        self.training = True

    def step(self, done: int) -> None:
        super().step(done)
        fields: dict[str, Any] = {}
        if self.loss is not None and (now := time.monotonic()) >= self.next_loss:
            self.next_loss = now + SECONDS_BETWEEN_LOSSES
            fields["train"] = f"loss {_number(float(self.loss))}"
        self.bar.update(self.task, completed=done, **fields)

    def evaluating(self, done: int, total: int) -> None:
        if self.training:
            self.bar.update(self.task, val=f"validating {done}/{total}" if done < total else self.last_val)
            return
        if done == 1:
            self.bar.reset(self.task, total=total, visible=True, epoch="evaluating", train="", val="")
            self.bar.start()
        self.bar.update(self.task, completed=done)
        if done == total:
            self.bar.stop()

    def logged(self, record: dict[str, Any]) -> None:
        epochs = f"epoch {record['epoch']:.4g}"
        if record["kind"] == "train":
            self.next_loss = time.monotonic() + (SECONDS_BETWEEN_LOSSES if self.brief else SECONDS_BETWEEN_LINES)
            text = f"loss {_number(record['loss'])}" if self.brief else summary(record)
            self.bar.update(self.task, epoch=epochs, train=text)
        else:
            self.last_val = main_value(record, self.metrics) if self.brief else summary(record)
            self.bar.update(self.task, epoch=epochs, val=self.last_val)

    def line(self, text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        self.bar.stop()
        self.training = False


def main_value(record: Mapping[str, Any], metrics: Sequence[Metric]) -> str:
    """The main metric of an evaluation, or its loss, in two or three words."""
    if not metrics or record.get(metrics[0].name) is None:
        return f"{record['split']} loss {_number(record.get('loss'))}"
    return f"{record['split']} {metrics[0].label} {metrics[0].text(record[metrics[0].name])}"


def choose_progress(quiet: bool = False, stream: TextIO | None = None) -> Progress:
    """A bar if the stream (stderr) is a terminal, lines otherwise; nothing if `quiet`."""
    stream = stream or sys.stderr
    if quiet:
        return Progress()
    return Bar(Console(file=stream)) if stream.isatty() else Lines(stream)


def summary(record: dict[str, Any]) -> str:
    """A line of metrics.jsonl in a few words."""
    if record["kind"] == "train":
        rate = f"{record['time']['images_per_second']:.4g} images/s"
        return f"loss {_number(record['loss'])}, lr {_number(record['lr'])}, {rate}"
    left_out = ("step", "epoch")
    values = [f"{name} {_number(value)}" for name, value in record.items() if _shown(value) and name not in left_out]
    return f"{record['split']}{' (ema)' if record['weights'] == 'ema' else ''}: {', '.join(values)}"


def _shown(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _number(value: float | None) -> str:
    return "nan" if value is None else f"{value:.4g}"
