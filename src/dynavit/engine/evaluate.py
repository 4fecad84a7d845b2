"""One pass over a split. Every sample counts once, whatever the number of processes."""

from collections.abc import Callable
from typing import Any

import torch

from .contract import Evaluator, Loader, Task
from .processes import Processes


@torch.no_grad()
def evaluate(
    task: Task,
    loader: Loader,
    processes: Processes,
    note: Callable[[str], None] | None = None,
    evaluator: Evaluator | None = None,
) -> dict[str, Any]:
    """{name: value} of the task's evaluator. Modules are in evaluation mode meanwhile. `note` hears of unreadable samples.

    Give an `evaluator` to ask it for more than its results afterwards.
    """
    modes = [(module, module.training) for module in task.modules()]
    task.eval()
    try:
        evaluator = evaluator or task.evaluator()
        for batches in loader.epoch():
            for batch in batches:
                with processes.autocast():
                    evaluator.update(batch.to(processes.device, processes.dtype))
                for message in batch.broken if note is not None else ():
                    note(message)  # type: ignore[misc]
        evaluator.set_totals(processes.sum(evaluator.totals()))
        return dict(evaluator.results())
    finally:
        for module, training in modes:
            module.training = training
