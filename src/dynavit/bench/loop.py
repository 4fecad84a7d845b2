"""Cost of the training loop beside a bare one: data, augmentation, clipping, logging, checkpoints.

Steps of the two are interleaved: before every step of ours the bare loop takes one, on a copy of the model, with the same
optimiser and a batch that is ready. Whatever else the machine does hits both alike.
"""

import copy
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..common.batch import Batch
from ..common.task import Task
from ..engine.config import TrainPlan
from ..engine.contract import Loader
from ..engine.loop import train
from ..engine.optimiser import make_optimiser, set_lr
from ..engine.processes import Processes
from ..runs.directory import RunDirectory
from .device import wait_for
from .machine import describe_machine


@dataclass(frozen=True)
class LoopCost:
    """Seconds per step, and ratios of the loop's to the bare loop's.

    Attributes:
        step_ratio: median over steps, with data and logging.
        step_ratio_quartiles: lower and upper.
        whole_ratio: everything between beginning and end, the checkpoint at the end of the epoch included.
    """

    steps: int
    batch_size: int
    bare_step: float
    loop_step: float
    step_ratio: float
    step_ratio_quartiles: tuple[float, float]
    whole_ratio: float

    def to_json(self, **facts: Any) -> dict[str, Any]:
        return {**asdict(self), **facts, "machine": describe_machine()}


def measure_loop(task: Task, loader: Loader, plan: TrainPlan, steps: int) -> LoopCost:
    """Train `steps` steps for real in a temporary run directory; the bare loop does as many in between."""
    processes = Processes(plan.engine)
    contest = _Interleaved(loader, _bare_stepper(task, plan, processes), min(steps, loader.steps), processes.device)
    plan = copy.deepcopy(plan)
    plan.epochs = 1
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        train(task, contest, None, plan, RunDirectory.create(Path(directory) / "run"), processes=processes)
        whole = time.perf_counter() - start
    bare = contest.bare[1:]  # without the first, which warms up
    ratios = [ours / theirs for ours, theirs in zip(contest.ours[1:], bare, strict=False)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return LoopCost(
        steps=len(contest.bare),
        batch_size=contest.batch_size,
        bare_step=statistics.median(bare),
        loop_step=statistics.median(contest.ours[1:]),
        step_ratio=middle,
        step_ratio_quartiles=(low, high),
        whole_ratio=(whole - sum(contest.bare)) / sum(contest.bare),
    )


class _Interleaved:
    """A loader that lets the bare loop take a step before each of its own, and looks at the clock."""

    def __init__(self, loader: Loader, bare_step: Any, steps: int, device: torch.device) -> None:
        self.loader, self.bare_step, self.steps, self.samples = loader, bare_step, steps, loader.samples
        self.device = device
        self.bare: list[float] = []
        self.ours: list[float] = []  # from asking for a batch to asking for the next; the last step has none
        self.batch_size = 0

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        batches = self.loader.epoch(epoch, start)
        ready = next(self.loader.epoch(epoch, start))
        self.batch_size = ready[0].step_count
        for _ in range(self.steps):
            began = self._now()
            self.bare_step(ready)
            middle = self._now()
            self.bare.append(middle - began)
            yield next(batches)
            self.ours.append(self._now() - middle)

    def _now(self) -> float:
        wait_for(self.device)
        return time.perf_counter()


def _bare_stepper(task: Task, plan: TrainPlan, processes: Processes) -> Any:
    task = copy.deepcopy(task).to(processes.device).train()
    optimiser = make_optimiser(task, plan.optim, processes.device)
    set_lr(optimiser, plan.lr)

    def step(batches: list[Batch]) -> None:
        optimiser.zero_grad(set_to_none=True)
        for batch in batches:
            task(batch)["loss"].backward()
        optimiser.step()

    return step
