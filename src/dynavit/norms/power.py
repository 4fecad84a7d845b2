"""PowerNorm. Shen et al. 2020, "Rethinking Batch Normalization in Transformers", arXiv 2003.07845."""

from typing import Any, Literal

import torch
from torch import Tensor

from .contract import Grid
from .factory import register_norm
from .once_differentiable import once_differentiable
from .statistics.distributed import process_count, sum_over_processes
from .statistics.moments import second_moment
from .statistics.smoothed import SmoothedNorm, is_recomputation
from .transforms import need_own_backward, refuse_transforms

_ONCE = (
    "PowerNorm's backward pass in training is a rule, not the derivative of its forward pass, and has no derivative itself; "
    "for second derivatives call .eval() first."
)


@register_norm("power")
class PowerNorm(SmoothedNorm):
    r"""Each channel by a quadratic mean that moves with training, in both directions; nothing is subtracted.

    $$ u = x^h / \sqrt{\overline{(x^h)^2} + \epsilon} \;\text{ per token and head,}\qquad
       z = u / \sqrt{\psi + \epsilon}, \qquad y = \gamma \odot z + \beta $$

    In training, at step k = 1, 2, ... with $\psi_B$ the mean of $u^2$ over the batch's tokens, per channel, and W the warm-up:

        forward    psi = psi_B if k <= W, else the running one as it was before this step
                   running <- running (k-1)/k + psi_B/k  if k < W;  then always  running <- a_f running + (1 - a_f) psi_B
        backward   l = dz - (1 - a_b) nu z;   nu <- nu + mean over tokens of l z;   du = l / sqrt(psi' + eps)
                   psi' = psi_B ("original");  psi_B if k < W, else the running one after this step ("dtn")

    The backward pass is this rule, not the derivative of the forward pass; u is differentiated as usual. At evaluation psi is
    the running one and every gradient is the derivative.

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$, `bias` $\beta$ (c); buffers `running_phi` (running
    $\psi$) and `ema_gz` ($\nu$) (c), `iters` (k). Padding enters no statistic; several processes share both. Where statistics
    are deferred, each of a step's calls is treated as the batch of that step, and all of them together move the state once.

    Args:
        backward: the paper authors' code ("original"), or the variant released with DTN (arXiv 2112.02624).
        warmup: W. The original has 10000, the code released with DTN 3000.
        alpha_fwd: a_f, the weight of the old value.
        alpha_bwd: a_b.
    """

    running_phi: Tensor
    ema_gz: Tensor
    iters: Tensor
    pending_gz: Tensor
    pending_gz_weight: Tensor
    used: Tensor

    def __init__(
        self,
        dim: int,
        *,
        backward: Literal["original", "dtn"] = "original",
        warmup: int = 10000,
        alpha_fwd: float = 0.9,
        alpha_bwd: float = 0.9,
        **shared: Any,
    ) -> None:
        super().__init__(dim, rows=1, **shared)
        if backward not in ("original", "dtn"):
            raise ValueError(f"PowerNorm: backward is 'original' or 'dtn'; got {backward!r}")
        if not (0 <= alpha_fwd <= 1 and 0 <= alpha_bwd <= 1):
            raise ValueError(
                f"PowerNorm: alpha_fwd and alpha_bwd weigh old values, between 0 and 1; got {alpha_fwd} and {alpha_bwd}"
            )
        if not warmup >= 0:
            raise ValueError(f"PowerNorm: warmup counts steps, at least 0; got {warmup}")
        self.backward_rule, self.warmup, self.alpha_fwd, self.alpha_bwd = backward, warmup, alpha_fwd, alpha_bwd
        self.register_buffer("running_phi", torch.empty(dim, **self.state_options))
        self.register_buffer("ema_gz", torch.empty(dim, **self.state_options))
        self.register_buffer("iters", torch.empty((), device=shared.get("device"), dtype=torch.int64))
        # The mean of l z and its weight, collected like psi in `pending`.
        self.register_buffer("pending_gz", torch.empty(dim, **self.state_options), persistent=False)
        self.register_buffer("pending_gz_weight", torch.empty(1, **self.state_options), persistent=False)
        # The psi of the last call, forward and backward, for its recomputation after the state has moved.
        self.register_buffer("used", torch.empty(2, dim, **self.state_options), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.running_phi.fill_(1.0)
        self.ema_gz.zero_()
        self.iters.zero_()
        self.used.fill_(1.0)

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        heads = x.unflatten(-1, (self.heads, -1))
        u = (heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + self.eps)).flatten(-2)
        if not self.training:
            return u * torch.rsqrt(self.running_phi.to(u.dtype) + self.eps)
        need_own_backward("PowerNorm in training")
        with torch.no_grad():
            psi, count = second_moment(u, (0, 1), None if mask is None else mask[..., None], reduce=sum_over_processes)
            in_forward, in_backward, count = self._divide_by(psi.flatten(), count.flatten())
            forward_scale, backward_scale = torch.rsqrt(in_forward + self.eps), torch.rsqrt(in_backward + self.eps)
        pending = (self.pending_gz, self.pending_gz_weight) if self.deferred else None
        return _Power.apply(u, forward_scale, backward_scale, count, self.ema_gz, pending, 1.0 - self.alpha_bwd)

    def _divide_by(self, psi: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The psi (c) that forward and backward divide by, from the batch's, and the tokens (1) by which the state moves: now,
        or at the end of the step."""
        dtn = self.backward_rule == "dtn"
        if self.deferred or self.recalibrating:
            self.collect(psi[None], count[None])
            if self.recalibrating:
                return psi, psi, count
            _, *used = _rule(psi, count, self.running_phi, self.iters + 1, self.warmup, self.alpha_fwd, dtn)
        elif is_recomputation():
            used = list(self.used.to(psi.dtype))
            count = torch.where(psi.isfinite().all(), count, 0.0)
        else:
            _, weight = self.finite_or_none(psi[None], count[None])
            count = weight[0]
            step = _opaque_step if torch.compiler.is_compiling() else _step
            used = list(step(psi, count, self.running_phi, self.iters, self.warmup, self.alpha_fwd, dtn))
            self.used.copy_(torch.stack(used))
        return used[0], used[1], count

    def move(self, statistics: Tensor, weight: Tensor) -> None:
        _step(statistics[0], weight[0], self.running_phi, self.iters, self.warmup, self.alpha_fwd, False)
        self.ema_gz.add_(_usable(self.pending_gz, weight[0]))

    def adopt(self, statistics: Tensor, weight: Tensor) -> None:
        self.running_phi.copy_(torch.where(weight[0] > 0, statistics[0], self.running_phi))

    def forget_statistics(self) -> None:
        super().forget_statistics()
        self.pending_gz.zero_()
        self.pending_gz_weight.zero_()

    def extra_repr(self) -> str:
        own = f", backward={self.backward_rule!r}, warmup={self.warmup}"
        if (self.alpha_fwd, self.alpha_bwd) != (0.9, 0.9):
            own += f", alpha_fwd={self.alpha_fwd:g}, alpha_bwd={self.alpha_bwd:g}"
        return super().extra_repr() + own


def _rule(
    psi: Tensor, count: Tensor, before: Tensor, k: Tensor, warmup: int, alpha: float, dtn: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The running psi after step k with a batch's psi (c), and the psi that its forward and backward divide by."""
    before, number = before.to(psi.dtype, copy=True), k.to(psi.dtype)
    # `where` on the device instead of `if`: the host never waits for the counter.
    after = torch.where(k < warmup, before * ((number - 1) / number) + psi / number, before)
    after = alpha * after + (1 - alpha) * psi
    after = torch.where(count > 0, after, before)
    in_forward = torch.where(k <= warmup, psi, before)
    in_backward = torch.where(k < warmup, psi, after) if dtn else psi.clone()
    return after, in_forward, in_backward


def _step(
    psi: Tensor, count: Tensor, running_phi: Tensor, iters: Tensor, warmup: int, alpha: float, dtn: bool
) -> tuple[Tensor, Tensor]:
    """Count one step and move `running_phi` by this batch's psi (c); the psi that forward and backward divide by."""
    iters.add_(1)
    after, in_forward, in_backward = _rule(psi, count, running_phi, iters, warmup, alpha, dtn)
    running_phi.copy_(after)
    return in_forward, in_backward


# For torch.compile, an operator it cannot look into: otherwise inductor recomputes psi for the backward pass from `running_phi`
# and `iters` after they have moved, and gradients are silently off (torch 2.13, up to 4 % in a trial). Eager needs no operator.
_opaque_step = torch.library.custom_op("dynavit::power_step", _step, mutates_args=("running_phi", "iters"))


@_opaque_step.register_fake
def _step_shapes(
    psi: Tensor, count: Tensor, running_phi: Tensor, iters: Tensor, warmup: int, alpha: float, dtn: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(psi), torch.empty_like(psi)


class _Power(torch.autograd.Function):
    """z = u * forward_scale, with PowerNorm's backward rule. The mean of l z moves `nu` (c), or waits in `pending`."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        forward_scale: Tensor,
        backward_scale: Tensor,
        count: Tensor,
        nu: Tensor,
        pending: tuple[Tensor, Tensor] | None,
        leak: float,
    ) -> Tensor:
        z = u * forward_scale
        ctx.save_for_backward(z, backward_scale, count)
        # Not saved tensors: each backward reads nu as it then is and moves it, also when several forwards came first.
        ctx.nu, ctx.pending = nu, pending
        ctx.leak = leak
        return z

    @staticmethod
    @once_differentiable(_ONCE)
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        refuse_transforms("PowerNorm's backward pass in training")
        z, backward_scale, count = ctx.saved_tensors
        # Gradients of processes are averaged, so each one's dz is as many times that of a lone process; nu is the latter's.
        world = process_count()
        l = dz - (world * ctx.leak) * ctx.nu.to(z.dtype) * z  # noqa: E741
        (total,) = sum_over_processes((l * z).sum((0, 1)))
        mean = total / (count.clamp(min=1) * world)
        if ctx.pending is None:
            ctx.nu.add_(_usable(mean, count))
        else:
            gathered, weight = ctx.pending
            gathered.add_((mean - gathered) * (count / (weight + count).clamp(min=1)))
            weight.add_(count)
        return l * backward_scale, None, None, None, None, None, None


def _usable(mean: Tensor, weight: Tensor) -> Tensor:
    # Loss scaling in half precision overflows now and then: the step is dropped, and must not be remembered.
    return torch.where(mean.isfinite() & (weight > 0), mean, 0.0)
