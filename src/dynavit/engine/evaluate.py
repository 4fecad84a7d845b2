"""One pass over a split. Every sample counts once, whatever the number of processes."""

from collections.abc import Callable
from typing import Any

import torch

from .contract import Evaluator, Loader, Task
from .interrupt import LeftUndoneError
from .pace import Pace
from .processes import Processes


@torch.no_grad()
def evaluate(
    task: Task,
    loader: Loader,
    processes: Processes,
    note: Callable[[str], None] | None = None,
    evaluator: Evaluator | None = None,
    pace: Pace | None = None,
    leave: Callable[[], bool] | None = None,
    at: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """{name: value} of the task's evaluator. Modules are in evaluation mode meanwhile. Samples that could not be read are
    counted as "broken", if there are any, and in the main process `note` gets the messages of all processes and those of the
    evaluator.

    Give an `evaluator` to ask it for more than its results afterwards, and a `pace` to know what took the time. As soon as
    `leave` says so in any process, all of them leave between two batches, with a `LeftUndoneError`. `at` hears how many batches
    are done, of how many.
    """
    modes = [(module, module.training) for module in task.modules()]
    task.eval()
    try:
        evaluator, pace, broken = evaluator or task.evaluator(), pace or Pace(), []
        for number, batches in enumerate(pace.waiting(loader.epoch()), 1):
            for batch in batches:
                there = batch.to(processes.device, processes.dtype)
                with pace.computing(batch.count, processes.device), processes.autocast():
                    evaluator.update(there)
                broken += batch.broken
            if at is not None:
                at(number, loader.steps)
            if leave is not None and processes.any(leave()):
                raise LeftUndoneError
        evaluator.totals = processes.combine(evaluator.totals)
        broken = processes.join(broken)
        results = dict(evaluator.results()) | ({"broken": len(broken)} if broken else {})
        if note is not None and processes.is_main:
            for message in (*broken, *evaluator.notes()):
                note(message)
        return results
    finally:
        for module, training in modes:
            module.training = training
