"""What a setting costs next to the others: time of a training step, arithmetic, parameters."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..common.batch import Batch
from ..common.task import Task
from .flops import count_macs
from .timing import time_interleaved

ROUNDS = 15  # at most
SECONDS = 60.0  # spent on timing, about
LR = 1e-9  # steps are real and change nothing worth mentioning


def training_costs(tasks: Mapping[str, Task], batch: Batch, baseline: str) -> list[dict[str, Any]]:
    """For each task: parameters, GMACs for one sample, seconds per step, and the ratio to the baseline's, side by side."""
    steps = {name: _step(task, batch) for name, task in tasks.items()}
    once = time_interleaved(steps, repeats=1, inner=1, warmup=1)
    round_seconds = 2 * sum(timing.median for timing in once.values())
    rounds = min(max(int(SECONDS / round_seconds), 3), ROUNDS)
    timings = time_interleaved(steps, repeats=rounds, inner=1, warmup=1)
    costs = []
    for name, task in tasks.items():
        ratio, low, high = timings[name].ratio(timings[baseline])
        costs.append(
            {
                "name": name,
                "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
                "gmacs": count_macs(task.model.eval(), batch.inputs[:1]) / 1e9,
                "step_seconds": timings[name].median,
                "step_ratio": ratio,
                "step_ratio_quartiles": [low, high],
                "rounds": rounds,
            }
        )
    return costs


def _step(task: Task, batch: Batch) -> Callable[[], None]:
    task.train()
    parameters = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=LR)

    def step() -> None:
        optimiser.zero_grad()
        task(batch)["loss"].backward()
        optimiser.step()

    return step
