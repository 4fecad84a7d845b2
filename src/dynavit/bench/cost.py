"""Cost of a setting next to the others: time of a training step, arithmetic, parameters."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..common.batch import Batch
from ..common.task import Task
from ..engine.optimiser import set_lr
from ..engine.optional import optional_methods
from .device import CPU
from .flops import count_macs
from .timing import time_interleaved

ROUNDS = 15  # at most
SECONDS = 60.0  # spent on timing, about
LR = 1e-9  # steps are real and change nothing worth mentioning


@dataclass(frozen=True)
class Contestant:
    """A task, the batch it is trained on and its optimiser; `autocast` makes the context of its precision."""

    task: Task
    batch: Batch
    optimiser: Optimizer
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext


def training_costs(contestants: Mapping[str, Contestant], baseline: str) -> list[dict[str, Any]]:
    """For each: parameters, GMACs for one sample, seconds per step, and the ratio to the baseline's, side by side."""
    steps = {name: _step(contestant) for name, contestant in contestants.items()}
    device = next((tensor.device for one in contestants.values() for tensor in one.task.parameters()), CPU)
    once = time_interleaved(steps, repeats=1, inner=1, warmup=1, device=device)
    round_seconds = 2 * sum(timing.median for timing in once.values())
    rounds = min(max(int(SECONDS / round_seconds), 3), ROUNDS)
    timings = time_interleaved(steps, repeats=rounds, inner=1, warmup=1, device=device)
    costs = []
    for name, contestant in contestants.items():
        model = contestant.task.model
        ratio, low, high = timings[name].ratio(timings[baseline])
        costs.append(
            {
                "name": name,
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "gmacs": _gmacs(contestant),
                "step_seconds": timings[name].median,
                "step_ratio": ratio,
                "step_ratio_quartiles": [low, high],
                "rounds": rounds,
            }
        )
    return costs


def _gmacs(contestant: Contestant) -> float | None:
    """Of the model for one sample; None where its input is not a single tensor, so that a sample cannot be cut out."""
    inputs = contestant.batch.inputs
    return count_macs(contestant.task.model.eval(), inputs[:1]) / 1e9 if isinstance(inputs, Tensor) else None


def _step(contestant: Contestant) -> Callable[[], None]:
    task, optimiser = contestant.task.train(), contestant.optimiser
    set_lr(optimiser, LR)
    for set_progress in optional_methods(task, "set_progress").values():
        set_progress(1, 2)  # the middle of a run: norms that begin as LayerNorm compute nothing else at its start

    def step() -> None:
        optimiser.zero_grad()
        with contestant.autocast():
            loss = task(contestant.batch)["loss"]
        loss.backward()
        optimiser.step()

    return step
