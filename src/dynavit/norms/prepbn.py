"""LayerNorm that becomes a re-parameterisable batch norm. Guo et al. 2024, "SLAB", arXiv 2405.11582."""

from typing import Any

import torch
from torch import Tensor

from .annealed import PARTS, AnnealedNorm, Evaluation
from .factory import register_norm
from .repbn import BatchNormPlusInput


@register_norm("prepbn")
class PRepBN(AnnealedNorm, BatchNormPlusInput):
    r"""Begins as LayerNorm and ends as `repbn`, which folds away.

    $$ y = \lambda \, \mathrm{LN}(x) + (1 - \lambda) \, (\mathrm{BN}(x) + \eta x) $$

    $\lambda$ (`blend`) is 1 for the share `warmup` of the run, falls linearly to 0 over the share `anneal`, and stays 0. The
    training loop tells where it is with `set_progress`. Running moments are collected from the first step.

    With `anneal_steps`, as in the release, steps are counted instead: `warm_steps` with LayerNorm alone, during which the
    running moments stay where they are, then $\lambda = 1 - i / \text{anneal\_steps}$ in the i-th step, from 0, that follows. A
    step is a call of `commit_statistics()`, which our training loop makes after each step of the optimiser. (The release
    evaluates `repbn` alone at all times: `evaluate="final"`.)

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight`, `bias` (c) of the batch norm, `ln_weight`, `ln_bias` (c) of
    LayerNorm, `eta` (1); buffers `running_mean`, `running_var` (c), `blend_parts`, and `steps` where they are counted.

    Args:
        eta: where $\eta$ starts.
        momentum: weight of the new batch in the running moments.
        ln_eps: LayerNorm's eps; `eps` is that of the batch norm.
        warmup, anneal, evaluate: as in every annealed norm.
        warm_steps, anneal_steps: a schedule in steps, instead of `warmup` and `anneal`.
    """

    uses_heads = False

    steps: Tensor | None

    def __init__(
        self,
        dim: int,
        *,
        eta: float = 1.0,
        momentum: float = 0.1,
        ln_eps: float = 1e-6,
        warmup: float = 0.0,
        anneal: float = 0.8,
        evaluate: Evaluation = "blend",
        warm_steps: int = 0,
        anneal_steps: int | None = None,
        **shared: Any,
    ) -> None:
        own = {"eta": eta, "momentum": momentum}
        super().__init__(dim, warmup=warmup, anneal=anneal, evaluate=evaluate, ln_eps=ln_eps, **own, **shared)
        if warm_steps < 0 or (anneal_steps is None and warm_steps) or (anneal_steps is not None and anneal_steps < 1):
            raise ValueError(
                "PRepBN: anneal_steps is the number of steps from LayerNorm to batch norm, at least 1, and warm_steps those "
                f"before them, at least 0; got warm_steps={warm_steps} and anneal_steps={anneal_steps}"
            )
        self.warm_steps, self.anneal_steps = warm_steps, anneal_steps
        counted = None if anneal_steps is None else torch.empty((), device=shared.get("device"), dtype=torch.int64)
        self.register_buffer("steps", counted)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.steps is not None:
            self.steps.zero_()

    def affine_map(self) -> tuple[Tensor, Tensor]:
        self.check_annealed()
        return super().affine_map()

    # ---- A schedule in steps

    @property
    def counts_every_step(self) -> bool:
        return self.steps is None

    def move(self, statistics: Tensor, weight: Tensor) -> None:
        if self.steps is not None:
            weight = torch.where(self.steps >= self.warm_steps, weight, 0.0)
        super().move(statistics, weight)

    def set_progress(self, step: int, total: int) -> None:
        if self.steps is None or step >= total:
            super().set_progress(step, total)

    @torch.no_grad()
    def commit_statistics(self) -> None:
        super().commit_statistics()
        if self.steps is not None and self.anneal_steps is not None:
            self.steps.add_(1)
            passed = (self.steps - self.warm_steps).clamp(0, self.anneal_steps)
            self.blend_parts.clamp_(max=PARTS - PARTS * passed // self.anneal_steps)

    def scalars(self) -> dict[str, float]:
        return {**super().scalars(), "blend": float(self.blend)}

    def extra_repr(self) -> str:
        schedule = f"warmup={self.warmup:g}, anneal={self.anneal:g}"
        if self.anneal_steps is not None:
            schedule = f"warm_steps={self.warm_steps}, anneal_steps={self.anneal_steps}"
        return f"{super().extra_repr()}, ln_eps={self.ln_eps:g}, {schedule}, evaluate={self.evaluate!r}"
