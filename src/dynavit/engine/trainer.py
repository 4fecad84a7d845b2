"""The state that changes from step to step, and the step that changes it."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ..common.batch import Batch
from ..common.fits import check_fits
from .checkpoint import STATE, Checkpoints, Snapshot, State
from .clip import clip_each
from .clock import Clock
from .compiling import Compiled
from .config import TrainPlan
from .contract import Task
from .ema import Ema
from .finite import explain
from .memory import keep_freed_memory
from .optimiser import load_optimiser_state, make_optimiser, optimiser_state, set_lr, set_weight_decay
from .optional import optional_methods
from .processes import Processes
from .schedule import half_cosine, lr_at
from .seeding import seed_everything
from .sharded import assign, gathered, whole_number
from .task_state import may_lack, own_state, trained_parameters


class Trainer:
    """A task with its optimiser and averages at some step.

    Attributes:
        step: steps done.
        best: {"value", "step", "weights"} of the best validation so far.
        window: sums over the steps since the last log line, {name: ()}; `window_steps` and `window_images` count them.
        log_size: bytes of metrics.jsonl at the checkpoint that was resumed.
        to_validate: whether the validation after this step was begun and is not complete.
    """

    def __init__(self, task: Task, plan: TrainPlan, steps_per_epoch: int, total: int, processes: Processes) -> None:
        self.task, self.plan, self.processes = task, plan, processes
        self.total, self.steps_per_epoch = total, steps_per_epoch
        self.warmup = min(plan.optim.warmup_steps or round(plan.optim.warmup_epochs * steps_per_epoch), total // 2)
        if processes.device.type == "cpu":
            keep_freed_memory()
        self.placed = processes.place(task).train()
        self.optimiser = make_optimiser(task, plan.optim, processes.device)
        self.parameters = [parameter for group in self.optimiser.param_groups for parameter in group["params"]]
        self.scaler = torch.amp.GradScaler(processes.device.type, enabled=plan.engine.precision == "fp16")
        self.ema = Ema(task.model, plan.ema) if plan.ema.decay else None
        self.set_progress = list(optional_methods(task, "set_progress").values())
        self.commit_statistics = list(optional_methods(task, "commit_statistics").values())
        self.forget_statistics = list(optional_methods(task, "forget_statistics").values())
        self.step = 0
        self.best: dict[str, Any] | None = None
        self.window: dict[str, Tensor] = {}
        self.window_steps = self.window_images = self.log_size = 0
        self.clock = Clock()
        self.to_validate = False

    @contextmanager
    def deferred_statistics(self) -> Iterator[None]:
        """Inside, statistics of layers move once per step, whatever the number of micro-batches."""
        defer_statistics = list(optional_methods(self.task, "defer_statistics").values())
        try:
            for defer in defer_statistics:
                defer(True)
            yield
        finally:
            for defer in defer_statistics:
                defer(False)

    # ---- One step: gradients, which can be repeated, and then the update

    def gradients(self, batches: list[Batch]) -> None:
        """Add up the gradient of the step over its micro-batches, and the step's means."""
        for forget_statistics in self.forget_statistics:
            forget_statistics()  # of an attempt that failed
        for set_progress in self.set_progress:
            set_progress(self.step, self.total)
        self.optimiser.zero_grad(set_to_none=True)
        self.means: dict[str, Tensor] = {}
        for number, batch in enumerate(batches):
            with self.processes.gradient_sync(self.placed, self.task, last=number == len(batches) - 1):
                outputs = self.forward(number, batch)
                # Means over the samples of the step: gradients of processes are averaged, those of micro-batches added up.
                share = batch.count / batch.step_count
                self.scaler.scale(outputs["loss"] * (share * self.processes.world)).backward()
            for name, value in outputs.items():
                value = torch.as_tensor(value, device=self.processes.device).detach().to(self.sum_dtype) * share
                self.means[name] = self.means[name] + value if name in self.means else value

    def forward(self, number: int, batch: Batch) -> dict[str, Tensor]:
        """The task's outputs for micro-batch `number`; the same at every call."""
        seed_everything(self.plan.seed, self.step, self.processes.rank, number)
        with self.processes.autocast():
            return self.placed(batch.to(self.processes.device, self.processes.dtype))

    def update(self, batches: list[Batch], compiled: Compiled) -> None:
        lr = self.lr_at(self.step)
        set_lr(self.optimiser, lr)
        if (decay := self.weight_decay_at(self.step)) is not None:
            set_weight_decay(self.optimiser, decay)
        self.scaler.unscale_(self.optimiser)
        self.task.before_update()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = whole_number(get_total_norm(gradients))
        self._check_finite(norm, batches, lr, compiled)
        if self.plan.optim.clip and self.plan.optim.clip_mode == "per_tensor":
            clip_each(gradients, self.plan.optim.clip)
        elif self.plan.optim.clip:
            clip_grads_with_norm_(self.parameters, self.plan.optim.clip, norm)
        if self._step_optimiser():
            for commit_statistics in self.commit_statistics:
                commit_statistics()
        if self.ema is not None:
            self.ema.update()
        self._add_to_window(self.means | {"grad_norm": norm.to(self.sum_dtype) / self.processes.world}, batches)
        self.step += 1

    def _step_optimiser(self) -> bool:
        """Whether the step was made: a loss scale that made gradients overflow is lowered instead."""
        before = self.scaler.get_scale()  # without scaling 1, which no device is asked for
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return self.scaler.get_scale() >= before

    def _check_finite(self, norm: Tensor, batches: list[Batch], lr: float, compiled: Compiled) -> None:
        engine, on_cpu = self.plan.engine, self.processes.device.type == "cpu"
        # Looking at a number on an accelerator makes the host wait for it.
        if not engine.check_finite or not (on_cpu or (self.step + 1) % engine.log_every == 0):
            return
        # A scaler expects gradients that overflow now and then, and skips those steps.
        watched = self.means["loss"] if self.scaler.is_enabled() else self.means["loss"] + norm
        if not math.isfinite(float(watched)):
            compiled.undo()  # hooks see the inside of a model only where it runs layer by layer

            def rerun() -> None:
                for number, batch in enumerate(batches):
                    self.forward(number, batch)

            raise explain(self.task.model, rerun, self.step, lr)

    # ---- What is logged

    @property
    def sum_dtype(self) -> torch.dtype:
        return torch.float32 if self.processes.device.type == "mps" else torch.float64

    def _add_to_window(self, means: dict[str, Tensor], batches: list[Batch]) -> None:
        broken = float(sum(len(batch.broken) for batch in batches))
        values = means | {"broken": torch.tensor(broken, device=self.processes.device, dtype=self.sum_dtype)}
        for name, value in values.items():
            if name in self.window:
                self.window[name] = self.window[name] + value
            elif not self.window_steps:  # else the checkpoint's part of the window has no such value, and a mean would be wrong
                self.window[name] = value
        self.window_steps += 1
        self.window_images += batches[0].step_count

    def take_window(self) -> dict[str, Any]:
        """Means since the last call, for a log line."""
        sums = {name: float(value) for name, value in self.processes.sum(self.window).items()}
        broken = int(sums.pop("broken"))
        values: dict[str, Any] = {"loss": sums.pop("loss") / self.window_steps, "lr": self.optimiser_lr}
        if (decay := self.weight_decay_at(self.step - 1)) is not None:
            values["weight_decay"] = decay
        values |= {name: value / self.window_steps for name, value in sums.items()}
        if broken:
            values["broken"] = broken
        values["time"] = self.clock.lap(self.window_images)
        self.window, self.window_steps, self.window_images = {}, 0, 0
        return values

    @property
    def optimiser_lr(self) -> float:
        return self.lr_at(self.step - 1)

    def lr_at(self, step: int) -> float:
        optim = self.plan.optim
        return lr_at(step, self.total, self.warmup, self.plan.lr, optim.min_lr, optim.schedule)

    def weight_decay_at(self, step: int) -> float | None:
        """None where it stays as it is."""
        optim = self.plan.optim
        if optim.weight_decay_end is None:
            return None
        return half_cosine(step, self.total, optim.weight_decay, optim.weight_decay_end)

    def keep_best(self, results: Mapping[str, Any], weights: str) -> None:
        """Compare a validation with the best one so far, by the task's main metric.

        A model whose outputs are not finite is never the best, whatever was counted as right.
        """
        metric = self.task.main_metric
        if metric is None or results.get("not_finite") or not math.isfinite(results.get("loss", 0.0)):
            return
        value = float(results[metric.name])
        if metric.improves(value, None if self.best is None else self.best["value"]):
            self.best = {"value": value, "step": self.step, "weights": weights}

    @property
    def is_best(self) -> bool:
        return self.best is not None and self.best["step"] == self.step

    # ---- What is stored

    def snapshot(self, log_size: int) -> Snapshot:
        """Everything to go on from here. All processes take part; the result is the same in each."""
        window = self.processes.sum(self.window)
        # From now on this process has the others' part too, as it would after resuming from the snapshot.
        self.window = window if self.processes.is_main else {name: torch.zeros_like(value) for name, value in window.items()}
        state = {
            "step": self.step,
            "total": self.total,
            "steps_per_epoch": self.steps_per_epoch,
            "optimiser": optimiser_state(self.optimiser, self.task),
            "scaler": self.scaler.state_dict(),
            "ema_updates": self.ema.updates if self.ema is not None else 0,
            "window": {name: value.cpu() for name, value in window.items()},
            "window_steps": self.window_steps,
            "window_images": self.window_images,
            "best": self.best,
            "to_validate": self.to_validate,
            "log_size": log_size,
            "clock": self.clock.state(),
        }
        model = {name: gathered(tensor) for name, tensor in self.task.model.state_dict().items()}
        own = {name: gathered(tensor) for name, tensor in own_state(self.task).items()}
        return Snapshot(model, self.ema.state() if self.ema is not None else None, state, own or None)

    def resume(self, checkpoints: Checkpoints, note: Callable[[str], None]) -> None:
        """Go back to the newest good checkpoint. Without any this is the start."""
        snapshot = checkpoints.load(self._check_fits, note)
        self.processes.barrier()
        if snapshot is None:
            note("there is no checkpoint yet, starting from the first step")
            return
        state = snapshot.state
        self.step, self.best, self.log_size = state["step"], state["best"], state["log_size"]
        if self.processes.is_main:
            checkpoints.settle(self.is_best)
        stored = snapshot.model | (snapshot.task or {})
        for name, tensor in (self.task.model.state_dict() | own_state(self.task)).items():
            if name in stored:  # else of an earlier version, see `_check_fits`
                assign(tensor, stored[name])
        if self.ema is not None and snapshot.ema is not None:
            self.ema.load(snapshot.ema, state["ema_updates"])
        load_optimiser_state(self.optimiser, self.task, state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])
        window = {name: value.to(self.processes.device) for name, value in state["window"].items()}
        self.window = window if self.processes.is_main else {name: torch.zeros_like(value) for name, value in window.items()}
        self.window_steps, self.window_images = state["window_steps"], state["window_images"]
        self.clock = Clock(**state["clock"])
        self.to_validate = state.get("to_validate", False)  # absent in older ones
        if self.to_validate:
            for set_progress in self.set_progress:
                set_progress(self.step - 1, self.total)  # as in the step before, which the validation belongs to

    def _check_fits(self, snapshot: Snapshot) -> None:
        check_fits(State, snapshot.state, STATE)
        own = {name: tuple(tensor.shape) for name, tensor in (self.task.model.state_dict() | own_state(self.task)).items()}
        stored = {name: tuple(tensor.shape) for name, tensor in (snapshot.model | (snapshot.task or {})).items()}
        newer = may_lack(self.task)
        own = {name: shape for name, shape in own.items() if name in stored or name not in newer}
        if own != stored:
            name = min(name for name in own.keys() | stored.keys() if own.get(name) != stored.get(name))
            raise ValueError(
                f"the checkpoint of step {snapshot.state['step']} is of another model: {name} is {stored.get(name, 'absent')} "
                f"there and {own.get(name, 'absent')} here"
            )
        for name, value in (("total", self.total), ("steps_per_epoch", self.steps_per_epoch)):
            if snapshot.state[name] != value:
                raise ValueError(
                    f"the checkpoint of step {snapshot.state['step']} has {name}={snapshot.state[name]}, this run has {value}; "
                    "resume with the same data, batch size and epochs, or start a new run"
                )
        if (snapshot.ema is None) != (self.ema is None):
            raise ValueError(
                "the checkpoint has an EMA and the plan has none, or the other way round; resume with the same ema.decay"
            )
        shapes = {name: parameter.shape for name, parameter in trained_parameters(self.task).items()}
        for name, moments in snapshot.state["optimiser"].items():
            for key, moment in moments.items():
                if moment.shape != (shapes.get(name) if key != "step" else ()):
                    raise ValueError(f"{STATE}: the optimiser's {key} of {name} has shape {tuple(moment.shape)}")
