"""PowerNorm. Shen et al. 2020, "Rethinking Batch Normalization in Transformers", arXiv 2003.07845."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .contract import Grid, Norm, statistics_dtype
from .distributed import sum_over_processes
from .moments import second_moment


class PowerNorm(Norm):
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
    $\psi$) and `ema_gz` ($\nu$) (c), `iters` (k). Every forward call in training is a step. Padding enters no statistic;
    several processes share both. $\nu$ has the scale of the loss each process differentiates, like any gradient.

    Args:
        backward: the paper authors' code ("original"), or the variant released with DTN (arXiv 2112.02624).
        warmup: W. The original has 10000, the code released with DTN 3000.
        alpha_fwd: a_f, the weight of the old value.
        alpha_bwd: a_b.
    """

    running_phi: Tensor
    ema_gz: Tensor
    iters: Tensor

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
        super().__init__(dim, **shared)
        if backward not in ("original", "dtn"):
            raise ValueError(f"PowerNorm: backward is 'original' or 'dtn'; got {backward!r}")
        self.backward_rule, self.warmup, self.alpha_fwd, self.alpha_bwd = backward, warmup, alpha_fwd, alpha_bwd
        device = shared.get("device")
        dtype = statistics_dtype(shared.get("dtype") or torch.get_default_dtype())
        self.register_buffer("running_phi", torch.empty(dim, device=device, dtype=dtype))
        self.register_buffer("ema_gz", torch.empty(dim, device=device, dtype=dtype))
        self.register_buffer("iters", torch.empty((), device=device, dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.running_phi.fill_(1.0)
        self.ema_gz.zero_()
        self.iters.zero_()

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        heads = x.unflatten(-1, (self.heads, -1))
        u = (heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + self.eps)).flatten(-2)
        if not self.training:
            return u * torch.rsqrt(self.running_phi.to(u.dtype) + self.eps)
        with torch.no_grad():
            psi, count = second_moment(u, (0, 1), None if mask is None else mask[..., None], reduce=sum_over_processes)
            psi, count = psi.flatten(), count.flatten()
            step = _opaque_step if torch.compiler.is_compiling() else _step
            in_forward, in_backward = step(
                psi, count, self.running_phi, self.iters, self.warmup, self.alpha_fwd, self.backward_rule == "dtn"
            )
            forward_scale, backward_scale = torch.rsqrt(in_forward + self.eps), torch.rsqrt(in_backward + self.eps)
        return _Power.apply(u, forward_scale, backward_scale, count, self.ema_gz, 1.0 - self.alpha_bwd)

    def extra_repr(self) -> str:
        own = f", backward={self.backward_rule!r}, warmup={self.warmup}"
        if (self.alpha_fwd, self.alpha_bwd) != (0.9, 0.9):
            own += f", alpha_fwd={self.alpha_fwd:g}, alpha_bwd={self.alpha_bwd:g}"
        return super().extra_repr() + own


def _step(
    psi: Tensor, count: Tensor, running_phi: Tensor, iters: Tensor, warmup: int, alpha: float, dtn: bool
) -> tuple[Tensor, Tensor]:
    """Count one step and move `running_phi` by this batch's psi (c); the psi that forward and backward divide by."""
    iters.add_(1)
    k = iters.to(psi.dtype)
    before = running_phi.to(psi.dtype, copy=True)
    # `where` on the device instead of `if`: the host never waits for the counter.
    after = torch.where(iters < warmup, before * ((k - 1) / k) + psi / k, before)
    after = alpha * after + (1 - alpha) * psi
    after = torch.where(count > 0, after, before)
    running_phi.copy_(after)
    in_forward = torch.where(iters <= warmup, psi, before)
    in_backward = torch.where(iters < warmup, psi, after) if dtn else psi.clone()
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
    """z = u * forward_scale, with PowerNorm's backward rule."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, forward_scale: Tensor, backward_scale: Tensor, count: Tensor, nu: Tensor, leak: float
    ) -> Tensor:
        z = u * forward_scale
        ctx.save_for_backward(z, backward_scale, count)
        # Not a saved tensor: each backward reads nu as it then is and moves it, also when several forwards came first.
        ctx.nu = nu
        ctx.leak = leak
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        z, backward_scale, count = ctx.saved_tensors
        l = dz - ctx.leak * ctx.nu.to(z.dtype) * z  # noqa: E741
        (total,) = sum_over_processes((l * z).sum((0, 1)))
        ctx.nu.add_(total / count.clamp(min=1))
        return l * backward_scale, None, None, None, None, None
