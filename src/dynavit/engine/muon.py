"""Muon: each weight matrix moves by the orthogonal matrix nearest to its averaged gradient; everything else by AdamW.

    m ← μ m + (1 − μ) g,   d = (1 − μ) g + μ m                   (Nesterov)
    W ← (1 − η w) W − 0.2 η √max(r, c) · U Vᵀ    where d = U S Vᵀ is (r, c)

A gradient of a layer lies mostly in few directions; U Vᵀ gives all of them the same length, so that the rare ones are learned
too. 0.2 √max(r, c) makes the step as large as AdamW's usually is, and learning rate and decay keep their meaning.
Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; the scale is Liu et al. 2025, arXiv:2502.16982.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from .sharded import assign

# Odd polynomial whose iteration drives singular values from (0, 1] to about 1 (between 0.7 and 1.2) in five rounds.
QUINTIC = (3.4445, -4.7750, 2.0315)
ROUNDS = 5


class Muon(Optimizer):
    """Groups with `"matrices": True` are Muon's, the others AdamW's.

    Both kinds live in `param_groups` and `state`, so schedules and checkpoints see one optimiser.
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, momentum: float, betas: tuple[float, float], eps: float, fused: bool
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": momentum, "weight_decay": 0.0, "matrices": False})
        others = [group for group in self.param_groups if not group["matrices"]]
        self.others = AdamW(others, lr=0.0, betas=betas, eps=eps, fused=fused) if others else None
        if self.others is not None:
            self.others.param_groups, self.others.state = others, self.state  # the very same ones

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("Muon takes one gradient a step: call it without a closure")
        for group in self.param_groups:
            if group["matrices"]:
                self._step_matrices(group)
        if self.others is not None:
            self.others.step()

    def _step_matrices(self, group: dict[str, Any]) -> None:
        momentum, lr = group["momentum"], group["lr"]
        alike: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}  # matrices of one shape are turned together
        for parameter in group["params"]:
            if parameter.grad is not None:
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                average = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
                direction = whole(parameter.grad.lerp(average, momentum)).flatten(1)
                alike.setdefault((direction.shape[0], direction.shape[1]), []).append((parameter, direction))
        for (rows, columns), found in alike.items():
            size = 0.2 * max(rows, columns) ** 0.5
            turned = orthogonal(torch.stack([direction for _, direction in found]))
            for (parameter, _), step in zip(found, turned, strict=True):
                parameter.mul_(1 - lr * group["weight_decay"])
                spread = torch.zeros_like(parameter)
                assign(spread, step.view(parameter.shape))
                parameter.add_(spread, alpha=-lr * size)


def orthogonal(matrices: Tensor) -> Tensor:
    """(n, r, c) -> (n, r, c): U Vᵀ of each, but for singular values that end between 0.7 and 1.2 instead of at 1."""
    a, b, c = QUINTIC
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


def whole(tensor: Tensor) -> Tensor:
    """All of a gradient that may be spread over processes: its directions cannot be found in a part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
