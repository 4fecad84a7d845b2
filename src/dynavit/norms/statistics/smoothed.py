"""Statistics that are smoothed over optimiser steps: when they are taken and when they move.

A step may have several forward calls (gradient accumulation), and activation checkpointing repeats forward calls inside the
backward pass. Statistics must move once per step all the same:

    plain loop                  every forward call in training is a step and moves them at once
    defer_statistics()          forward calls only collect; `commit_statistics()`, after the optimiser's step, moves them once
    forget_statistics()         the step is not made, or made again
    recomputed forward call     collects nothing
    begin/end_recalibration()   forward calls collect over a whole data set; its exact statistics then replace the smoothed ones
    NaN or infinite statistics  the step moves nothing and is counted in `skipped_steps`; a NaN would stay for ever
"""

import math
from typing import Any

import torch
from torch import Tensor

from ..beside import Beside
from ..contract import Grid, Norm, statistics_dtype
from ..transforms import refuse_transforms


class SmoothedNorm(Norm):
    """Base of norms with a memory of earlier batches.

    A subclass calls `collect` once in each forward call in training, and writes `move` and `adopt`. Statistics are rows of
    (rows, c) with weights (rows, 1), the number of values behind them (over all processes).

    Args:
        rows: how many statistics there are per channel.
    """

    newer_state = ("skipped_steps",)
    pending: Tensor
    pending_weight: Tensor
    skipped_steps: Tensor

    def __init__(self, dim: int, *, rows: int, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.deferred = self.recalibrating = False
        # In half precision a running average stops moving once its steps are below one rounding unit.
        self.state_options: dict[str, Any] = {
            "device": shared.get("device"),
            "dtype": statistics_dtype(shared.get("dtype") or torch.get_default_dtype()),
        }
        # Between steps these are zero, so they are not part of a checkpoint.
        self.register_buffer("pending", torch.zeros(rows, dim, **self.state_options), persistent=False)
        self.register_buffer("pending_weight", torch.zeros(rows, 1, **self.state_options), persistent=False)
        self.register_buffer("skipped_steps", torch.zeros((), device=shared.get("device"), dtype=torch.int64))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.forget_statistics()
        self.skipped_steps.zero_()

    # ---- Written by subclasses

    def move(self, statistics: Tensor, weight: Tensor) -> None:
        """Move the state by one step's statistics (rows, c) of weight (rows, 1), in place, without reading a value on the host.

        Where a weight is 0 nothing was seen and nothing may move.
        """
        raise NotImplementedError

    def adopt(self, statistics: Tensor, weight: Tensor) -> None:
        """Replace the state by exact statistics. Where a weight is 0 the old state stays."""
        raise NotImplementedError

    def merge(self, old: Tensor, old_weight: Tensor, new: Tensor, new_weight: Tensor) -> Tensor:
        """Statistics (rows, c) of two sets of values together; here, weighted means."""
        return old + (new - old) * (new_weight / (old_weight + new_weight).clamp(min=1))

    def train_share(self, x: Tensor, mask: Tensor | None, beside: Beside | None) -> Tensor:
        """`transform` in training; with a LayerNorm `beside` the mixture of both, which is what an `AnnealedNorm` calls."""
        raise NotImplementedError

    def watch(self, x: Tensor, mask: Tensor | None) -> None:
        """Collect the statistics of tokens (b, t, c) in training as `train_share` does, and compute nothing else."""
        raise NotImplementedError

    # ---- Called by the forward pass and the training loop

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        self.check_call()
        return super().forward(x, grid, mask)

    def check_call(self) -> None:
        """Raise where the memory cannot move."""
        if self.training:
            refuse_transforms(f"{type(self).__name__} in training")

    @torch.no_grad()
    def collect(self, statistics: Tensor, weight: Tensor) -> None:
        """Take one forward call's statistics. (rows, c), (rows, 1)."""
        if is_recomputation():
            return
        statistics, weight = statistics.to(self.pending.dtype), weight.to(self.pending.dtype)
        if self.recalibrating or not self.deferred:  # else the whole step is judged, at its end
            statistics, weight = self.finite_or_none(statistics, weight)
        if self.deferred or self.recalibrating:
            self.pending.copy_(self.merge(self.pending, self.pending_weight, statistics, weight))
            self.pending_weight.add_(weight)
        else:
            self.move(statistics, weight)

    def finite_or_none(self, statistics: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The same, or zeros of weight 0 if a number is not finite, which is counted. Processes agree, as they share them."""
        if known_to_host(statistics) and math.isfinite(statistics.sum().item()):
            return statistics, weight
        broken = statistics.isfinite().all().logical_not_()
        self.skipped_steps.add_(broken)
        return statistics.masked_fill(broken, 0.0), weight.masked_fill(broken, 0.0)

    def defer_statistics(self, deferred: bool = True) -> None:
        """From now on statistics move at `commit_statistics`; with False, at every forward call again."""
        self.deferred = deferred
        self.forget_statistics()

    @torch.no_grad()
    def commit_statistics(self) -> None:
        """Called after the optimiser's step: move by the statistics collected since the last one."""
        if self.deferred:
            self.move(*self.finite_or_none(self.pending, self.pending_weight))
            self.forget_statistics()

    def begin_recalibration(self) -> None:
        self.forget_statistics()
        self.recalibrating = True
        self.train()

    @torch.no_grad()
    def end_recalibration(self, keep: bool = True) -> None:
        """Adopt the collected statistics, or forget them."""
        if keep:
            self.adopt(self.pending, self.pending_weight)
        self.forget_statistics()
        self.recalibrating = False
        self.eval()

    def forget_statistics(self) -> None:
        """Drop statistics that were collected and not committed: the step is not made, or made again from its beginning."""
        self.pending.zero_()
        self.pending_weight.zero_()

    # ---- Checkpoints and logs

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in self.newer_state:
            state_dict.setdefault(prefix + name, torch.zeros_like(getattr(self, name), device="cpu"))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def scalars(self) -> dict[str, float]:
        """For logs: the steps whose statistics were not finite, so far."""
        return {"skipped_steps": float(self.skipped_steps)}


def known_to_host(tensor: Tensor) -> bool:
    """Whether Python may look at a value without waiting for a device or breaking a graph: then it can leave operations out."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def is_recomputation() -> bool:
    """Whether this forward call runs inside a backward pass, that is, repeats one for activation checkpointing."""
    # A compiled graph decides by itself what it recomputes, and buffers that it changes are not part of that.
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
