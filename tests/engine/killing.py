"""Trainings that are killed: a program of its own, run by test_resume.py.

    python killing.py OUT EVERY     train once, then kill a copy of that training at every EVERY-th moment of
                                    each kind, and resume it
    python killing.py one OUT STEP  one training killed at a step (-1: never), resumed if OUT exists

A moment is the n-th call of a function that changes files, just before or just after it, a file half written, or a step.
Copies are forks of a process that has imported everything. SIGKILL leaves what the operating system has been given, so
forcing to disk only counts here.
"""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from dynavit.common.batch import Batch
from dynavit.engine import checkpoint, log
from dynavit.engine.config import EmaConfig, EngineConfig, TrainPlan
from dynavit.engine.loop import train
from dynavit.engine.processes import Processes
from dynavit.runs.directory import RunDirectory
from engine.tiny import TinyLoader, TinyTask, eval_loader

FILE_CALLS = ("fsync", "rename", "replace", "link", "rmdir", "unlink")
Moment = tuple[str, int, str]  # what, which time, when


class Watched(TinyLoader):
    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        for number, batches in enumerate(super().epoch(epoch, start), start):
            happens("step", lambda: None, lambda: None, exactly=epoch * self.steps + number)
            yield batches


def training(directory: Path) -> None:
    """2.5 epochs of 4 steps with checkpoints every 3 steps, at ends of epochs that are best, and at the end."""
    engine = EngineConfig(device="cpu", log_every=2, checkpoint_every=3)
    plan = TrainPlan(epochs=2.5, lr=0.03, ema=EmaConfig(decay=0.9), engine=engine)
    run = RunDirectory.create(directory, resume=directory.exists())
    run.write_config({"lr": 0.03})
    loader, val = Watched(), eval_loader()
    loader.broken = {(0, 1): "a", (0, 3): "b", (1, 0): "a", (1, 3): "b", (2, 1): "c"}
    val.broken = {(0, 0): "of validation"}
    train(TinyTask(), loader, val, plan, run, processes=Processes(engine), resume=True)


# ---- Moments

seen: Counter[str] = Counter()
fatal: Moment | None = None


def happens(what: str, act: Callable[[], Any], half: Callable[[], Any], exactly: int | None = None) -> Any:
    number = seen[what] if exactly is None else exactly
    seen[what] += 1
    when = fatal[2] if fatal is not None and fatal[:2] == (what, number) else None
    if when == "half":
        half()
    if when in ("before", "half"):
        os.kill(os.getpid(), signal.SIGKILL)
    result = act()
    if when == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return result


def watch() -> None:
    for name in FILE_CALLS:
        real = (lambda *_: None) if name == "fsync" else getattr(os, name)

        def call(*args: Any, name: str = name, real: Callable[..., Any] = real, **options: Any) -> Any:
            return happens(name, lambda: real(*args, **options), lambda: None)

        setattr(os, name, call)
    for module, name, position in ((checkpoint, "save_file", 1), (checkpoint.torch, "save", 1)):
        real = getattr(module, name)

        def write(*args: Any, name: str = name, real: Any = real, position: int = position, **options: Any) -> Any:
            def half() -> None:
                real(*args, **options)
                os.truncate(args[position], Path(args[position]).stat().st_size // 2)

            return happens(name, lambda: real(*args, **options), half)

        setattr(module, name, write)
    real_line = log.Log.write

    def line(self: log.Log, record: dict[str, Any]) -> None:
        def half() -> None:
            self.file.write(b'{"kind": "train", "st')
            self.file.flush()

        happens("line", lambda: real_line(self, record), half)

    log.Log.write = line  # type: ignore[method-assign]


def moments(every: int) -> list[Moment]:
    """Each `every`-th of its kind, of all that a whole training has seen."""
    found: list[Moment] = []
    for what, times in sorted(seen.items()):
        halves = ("half",) if what in ("save_file", "save", "line") else ()
        whens = ("before",) if what == "step" else ("before", *halves, "after")
        found += [(what, number, when) for number in range(times) for when in whens][::every]
    return found


def forked(directory: Path, moment: Moment | None) -> int:
    """The wait status of a copy of this process that trains."""
    global fatal
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        fatal = moment
        seen.clear()
        status = 1
        try:
            training(directory)
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def main(out: Path, every: int) -> None:
    training(out / "first")  # modules and temporary directories are found at the first call: not part of a training
    watch()
    seen.clear()
    training(out / "reference")
    chosen = moments(every)
    report = []
    for number, moment in enumerate(chosen):
        directory = out / f"{number:03}-{'-'.join(map(str, moment))}"
        killed = [forked(directory, moment)]
        if number % 3 == 0:  # and once more while it is being resumed
            killed.append(forked(directory, ("save", 0, "half")))
        report.append({"directory": directory.name, "killed": killed, "resumed": forked(directory, None)})
    print(json.dumps(report))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "one":
        fatal = ("step", int(sys.argv[3]), "before")
        training(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]))
