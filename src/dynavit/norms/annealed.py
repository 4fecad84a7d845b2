"""A norm that begins as LayerNorm and ends as one that folds away.

    y = blend * LN(x) + (1 - blend) * N(x),    blend: 1 for a while, then linearly down to 0, then 0 to the end

LayerNorm bounds every token while N learns its statistics on a healthy network. The training loop reports its progress through
`set_progress`; without reports blend stays 1.
"""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .beside import Beside
from .contract import Grid, statistics_dtype
from .statistics.smoothed import SmoothedNorm, known_to_host
from .transforms import needs_plain_operations

Evaluation = Literal["blend", "final"]
PARTS = 2**30


class AnnealedNorm(SmoothedNorm):
    """Base of annealed norms; in a class's list of bases it stands in front of N. LayerNorm has `ln_weight` and `ln_bias` (c).

    The state holds `blend_parts`, a whole number of parts of 2^-30: averages of weights copy whole numbers, where an average of
    `blend` itself would never reach 0, and conversions to half precision leave whole numbers alone.

    Args:
        warmup: share of the training run with LayerNorm alone.
        anneal: share of the run over which `blend` falls to 0 after that.
        evaluate: the output at evaluation: the blend that is being trained ("blend"), or N alone, as in the end ("final").
        ln_eps: LayerNorm's eps; that of N if not given.
    """

    blend_parts: Tensor
    ln_weight: nn.Parameter | None
    ln_bias: nn.Parameter | None

    def __init__(
        self,
        dim: int,
        *,
        warmup: float,
        anneal: float,
        evaluate: Evaluation = "blend",
        ln_eps: float | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        if not (warmup >= 0 and anneal >= 0 and warmup + anneal <= 1):
            raise ValueError(
                f"{type(self).__name__}: warmup and anneal are shares of the training run, together at most 1; "
                f"got {warmup} and {anneal}"
            )
        if evaluate not in ("blend", "final"):
            raise ValueError(f"{type(self).__name__}: evaluate is 'blend' or 'final'; got {evaluate!r}")
        if ln_eps is not None and not 0 <= ln_eps < math.inf:
            raise ValueError(f"{type(self).__name__}: ln_eps is added to a variance, at least 0 and finite; got {ln_eps}")
        self.warmup, self.anneal, self.evaluate = warmup, anneal, evaluate
        self.ln_eps = self.eps if ln_eps is None else ln_eps
        options = {"device": shared.get("device"), "dtype": shared.get("dtype")}
        self.ln_weight = nn.Parameter(torch.empty(dim, **options)) if self.affine else None
        self.ln_bias = nn.Parameter(torch.empty(dim, **options)) if self.affine else None
        self.register_buffer("blend_parts", torch.empty((), device=shared.get("device"), dtype=torch.int64))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.blend_parts.fill_(PARTS)
        if self.ln_weight is not None and self.ln_bias is not None:
            nn.init.ones_(self.ln_weight)
            nn.init.zeros_(self.ln_bias)

    def inherited(self, old: str) -> dict[str, str]:
        """A LayerNorm it replaces is the one it begins as."""
        layer_norm = {"ln_weight": "weight", "ln_bias": "bias"} if old == "ln" else {}
        return super().inherited(old) | layer_norm

    @property
    def blend(self) -> Tensor:
        """LayerNorm's share, ()."""
        return self.blend_parts.to(statistics_dtype(self.pending.dtype)) / PARTS

    def transform(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        """blend * LN(x) + (1 - blend) * N(x), exactly one of them where blend is 1 or 0."""
        if not self.training and self.evaluate == "final":
            return super().transform(x, grid, mask)
        weight, bias = (None if p is None else p.to(x.dtype) for p in (self.ln_weight, self.ln_bias))
        blend = self.blend.to(x.dtype)
        if not self.training:
            layer_norm = F.layer_norm(x, (self.dim,), weight, bias, self.ln_eps)
            return torch.lerp(super().transform(x, grid, mask), layer_norm, blend)
        if known_to_host(self.blend_parts) and self.blend_parts.item() == PARTS and not needs_plain_operations():
            # LayerNorm alone. N only watches, and its parameters have the gradient 0 that its share gives them.
            self.watch(x, mask)
            others = [
                parameter
                for parameter in self.parameters()
                if parameter is not self.ln_weight and parameter is not self.ln_bias
            ]
            y: Tensor = _WithoutSlope.apply(F.layer_norm(x, (self.dim,), weight, bias, self.ln_eps), *others)
            return y
        # The shares enter the parameters, which are few, instead of the results and their gradients.
        weight = blend.expand(self.dim) if weight is None else weight * blend
        bias = None if bias is None else bias * blend
        return self.train_share(x, mask, Beside(1 - blend, weight, bias, self.ln_eps))

    def set_progress(self, step: int, total: int) -> None:
        """Set `blend` before step number `step`, from 0, of `total`. It never rises."""
        start, length = self.warmup * total, self.anneal * total
        passed = (step - start) / length if length > 0 else float(step >= start)
        self.blend_parts.clamp_(max=round(PARTS * (1.0 - min(1.0, max(0.0, passed)))))

    def check_annealed(self) -> None:
        """Before folding: refuse while `blend` is above 0."""
        if float(self.blend) > 0:
            raise RuntimeError(
                f"{type(self).__name__} is still {float(self.blend):.0%} LayerNorm and no affine map: train on until "
                "annealing has ended, or set_progress(1, 1) if the rest may be dropped"
            )


class _WithoutSlope(torch.autograd.Function):
    """Passes y through, as a function of parameters that it does not depend on: their gradients are 0 rather than missing."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wanted = zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=True)
        zeros = (torch.zeros_like(parameter) if need else None for parameter, need in wanted)
        return grad, *zeros
