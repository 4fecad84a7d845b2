"""Unified Normalization. Yang et al., ACM MM 2022, arXiv 2208.01313."""

from typing import Any

import torch
from torch import Tensor

from .contract import Grid, statistics_dtype
from .factory import register_norm
from .once_differentiable import once_differentiable
from .statistics.distributed import process_count, sum_over_processes
from .statistics.moments import second_moment
from .statistics.smoothed import SmoothedNorm, is_recomputation
from .transforms import need_own_backward, refuse_transforms
from .un_rules import ForwardStep, backward_step, forward_step, opaque_forward_step, written

_ONCE = (
    "UnifiedNorm's backward pass in training is a rule, not the derivative of its forward pass, and has no derivative itself; "
    "for second derivatives call .eval() first."
)


@register_norm("un")
class UnifiedNorm(SmoothedNorm):
    r"""Each channel by a quadratic mean smoothed over steps, in both directions; a fixed affine map at evaluation.

    $$ y = \gamma \odot z + \beta, \qquad z = x / \sqrt{s + \epsilon} $$

    At evaluation s is the running second moment v. In training, at step t = 1, 2, ... with windows of $M_f$ and $M_b$ steps:

        forward    q = mean of x^2 over tokens                  enters the forward window
                   s = q if t <= M_f or in the warm-up, else the geometric mean of the window, q included
                   r = sqrt((s + eps) / (v + eps)) within [1/5, 5]; 1 in the warm-up and in the first 1000 steps
                   v <- alpha v + (1 - alpha) s
        backward   h = r gamma dy,   k = mean of h z            enters the backward window
                   m = k if t <= M_b or in the warm-up, else the mean of the window
                   psi <- alpha psi + (1 - alpha) m
                   dx = (h - psi z) / sqrt(s + eps),   dgamma = sum of dy r z,   dbeta = sum of dy

    The backward pass is this rule, not the derivative of the forward pass. Nothing is subtracted from x.

    A channel whose log q is far from its window's median (5 median deviations, each at least 0.2) is an outlier: this step
    normalises it by its own q and takes the exact gradient (s = q, r = 1, dx with k instead of psi), and window and v see q
    clipped to that distance. A window of one step is no window: every channel is treated so at every step.

    With `official=True` everything is as in the authors' code: an outlier anywhere makes outliers of all channels, by a
    condition on the spread of all channels together, from the end of the warm-up on; v takes the outlier's place in the window,
    but the outlier moves v. Every forward call in training is a step. Padding enters k, and is normalised like real tokens.
    The input may be (tokens, c).

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$, `bias` $\beta$; buffers `running_var` (v), `ema_gz`
    (psi) (c), `buffer_x2` ($M_f$, c), `buffer_gz` ($M_b$, c), `iters` (t) and `skip_counter` (1): the steps with an outlier,
    or, without `official`, the clipped values. Several processes share all statistics.

    Args:
        window: $M_f$ and $M_b$, one number for both or a pair.
        warmup: steps before smoothing begins; at most a tenth of the run, where the training loop tells its length.
        alpha: weight of the old value in both running averages.
        official: as the authors' code.
        filtration: whether outliers are looked for. None: yes, but not with `official`, where it is the authors' default.
    """

    uses_heads = False

    running_var: Tensor
    ema_gz: Tensor
    buffer_x2: Tensor
    buffer_gz: Tensor
    iters: Tensor
    skip_counter: Tensor
    pending_gz: Tensor
    pending_gz_weight: Tensor
    used: Tensor

    def __init__(
        self,
        dim: int,
        *,
        window: int | tuple[int, int] = 4,
        warmup: int = 4000,
        alpha: float = 0.9,
        official: bool = False,
        filtration: bool | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, rows=1, **shared)
        sizes = (window, window) if isinstance(window, int) else tuple(window)
        if len(sizes) != 2 or min(sizes) < 1:
            raise ValueError(f"UnifiedNorm: window counts steps, at least 1, or is a pair (forward, backward); got {window}")
        if not 0.0 <= alpha <= 1.0:
            raise ValueError(f"UnifiedNorm: alpha is the weight of the old value, between 0 and 1; got {alpha}")
        if not warmup >= 0:
            raise ValueError(f"UnifiedNorm: warmup counts steps, at least 0; got {warmup}")
        self.window, self.warmup, self.alpha, self.official = sizes, warmup, alpha, official
        self.longest_warmup = warmup
        self.filtration = not official if filtration is None else filtration
        counter: dict[str, Any] = {"device": shared.get("device"), "dtype": torch.int64}
        self.register_buffer("running_var", torch.empty(dim, **self.state_options))
        self.register_buffer("ema_gz", torch.empty(dim, **self.state_options))
        self.register_buffer("iters", torch.empty(1, **counter))
        self.register_buffer("buffer_x2", torch.empty(sizes[0], dim, **self.state_options))
        self.register_buffer("buffer_gz", torch.empty(sizes[1], dim, **self.state_options))
        self.register_buffer("skip_counter", torch.empty(1, **counter))
        # k and its weight, collected like q in `pending`.
        self.register_buffer("pending_gz", torch.empty(dim, **self.state_options), persistent=False)
        self.register_buffer("pending_gz_weight", torch.empty(1, **self.state_options), persistent=False)
        # s, r and skip of the last forward call, for its recomputation after the state has moved.
        self.register_buffer("used", torch.empty(3, dim, **self.state_options), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.running_var.fill_(1.0)
        for state in (self.ema_gz, self.buffer_x2, self.buffer_gz, self.iters, self.skip_counter, self.used):
            state.zero_()

    # ---- One call

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        if not self.official:
            return super().forward(x, grid, mask)
        self.check_call()
        # Padding keeps its values and its gradients.
        tokens, grid = self._as_tokens(x[None] if x.dim() == 2 else x, grid)
        if mask is not None:
            mask = self._as_token_mask(mask[None] if mask.dim() == 1 else mask, tokens)
        return self.transform(tokens.to(statistics_dtype(x.dtype)), grid, mask).to(x.dtype).reshape(x.shape)

    def transform(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        if not self.training:
            scale, shift = self._affine(x.dtype)
            return x * scale + shift
        need_own_backward("UnifiedNorm in training")
        weight, bias = (None if p is None else p.to(x.dtype) for p in (self.weight, self.bias))
        with torch.no_grad():
            t, s2, r, skip, count = self._statistics(x, mask)
        pending = (self.pending_gz, self.pending_gz_weight) if self.deferred else None
        memory = (self.buffer_gz, self.ema_gz, pending)
        return _Unified.apply(x, weight, bias, t, s2, r, skip, count, *memory, self.eps, self.warmup, self.alpha)

    def _statistics(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        """t (1), s, r and skip (c) of this call, which are remembered, and the number of tokens (1) that k is a mean over."""
        if mask is None:
            q, valid = second_moment(x, (0, 1), reduce=sum_over_processes)
        else:
            mask = mask[..., None]
            q, valid = second_moment(torch.where(mask, x, 0.0), (0, 1), mask, reduce=sum_over_processes)
        q, valid = q.flatten(), valid.flatten()
        count = valid
        if self.official and mask is not None:
            (count,) = sum_over_processes(x.new_full((1,), x.shape[0] * x.shape[1]))
        if self.recalibrating:
            self.collect(q[None], valid[None])
            return self.iters.clone(), q, torch.ones_like(q), torch.ones_like(q, dtype=torch.bool), count
        if is_recomputation() and not self.deferred:
            s2, r, skip = self.used.to(q.dtype)
            return self.iters.clone(), s2, r, skip > 0, count
        step = self.look(q)
        if self.deferred:
            self.collect(q[None], valid[None])
        else:  # what `collect` would do, but for looking again
            self._make(step, self.finite_or_none(q[None], valid[None])[1][0])
            self.used.copy_(torch.stack([step.s2, step.r, step.skip.to(q.dtype)]))
        return step.t, step.s2, step.r, step.skip, count

    def look(self, q: Tensor) -> ForwardStep:
        """The next step, if it saw second moments q (c). Nothing moves."""
        rule = opaque_forward_step if torch.compiler.is_compiling() else forward_step
        return ForwardStep(
            *rule(q, self.buffer_x2, self.running_var, self.iters, self.warmup, self.eps, self.official, self.filtration)
        )

    # ---- The memory

    def move(self, statistics: Tensor, weight: Tensor) -> None:
        self._make(self.look(statistics[0]), weight[0])

    def _make(self, step: ForwardStep, weight: Tensor) -> None:
        """Move the state by a step of this weight (1)."""
        seen = weight > 0
        window = written(self.buffer_x2, step.entry, step.t)
        running = self.alpha * self.running_var + (1 - self.alpha) * step.moved
        _replace(seen, (self.buffer_x2, window), (self.running_var, running))
        self.iters.add_(seen)
        self.skip_counter.add_(step.outliers * seen)

    def adopt(self, statistics: Tensor, weight: Tensor) -> None:
        _replace(weight[0] > 0, (self.running_var, statistics[0]))

    def set_progress(self, step: int, total: int) -> None:
        """Keep the warm-up within a tenth of the run: the authors' 4000 steps would be the whole of a short one."""
        if not self.official:
            self.warmup = min(self.longest_warmup, total // 10)

    def defer_statistics(self, deferred: bool = True) -> None:
        super().defer_statistics(deferred and not self.official)

    @torch.no_grad()
    def commit_statistics(self) -> None:
        if self.deferred:
            step = self.look(self.pending[0])
            _, window, psi = backward_step(
                self.pending_gz, self.buffer_gz, self.ema_gz, step.t, step.skip, self.warmup, self.alpha
            )
            usable = _usable(self.pending_gz, self.pending_gz_weight) & self.pending.isfinite().all()
            _replace(usable, (self.buffer_gz, window), (self.ema_gz, psi))
        super().commit_statistics()

    def forget_statistics(self) -> None:
        super().forget_statistics()
        self.pending_gz.zero_()
        self.pending_gz_weight.zero_()

    # ---- At evaluation

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """(scale, shift), both (c), such that this layer at evaluation is x -> scale * x + shift."""
        if self.training:
            raise RuntimeError("UnifiedNorm is an affine map only at evaluation: call .eval() first")
        return self._affine(statistics_dtype(self.running_var.dtype))

    def _affine(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        scale = torch.rsqrt(self.running_var.to(dtype) + self.eps)
        if self.weight is None or self.bias is None:
            return scale, torch.zeros_like(scale)
        return scale * self.weight.to(dtype), self.bias.to(dtype)

    def scalars(self) -> dict[str, float]:
        """For logs, also the number of outliers so far."""
        return {"outliers": float(self.skip_counter)} | super().scalars()

    def extra_repr(self) -> str:
        own = f", window={self.window}, warmup={self.warmup}, alpha={self.alpha:g}, filtration={self.filtration}"
        return super().extra_repr() + own + (", official=True" if self.official else "")


class _Unified(torch.autograd.Function):
    """y = weight * z + bias with UN's backward rule. k moves `window` (m, c) and `psi` (c) or waits in `pending`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        t: Tensor,
        s2: Tensor,
        r: Tensor,
        skip: Tensor,
        count: Tensor,
        window: Tensor,
        psi: Tensor,
        pending: tuple[Tensor, Tensor] | None,
        eps: float,
        warmup: int,
        alpha: float,
    ) -> Tensor:
        scale = torch.rsqrt(s2 + eps)
        ctx.save_for_backward(x, weight, t, scale, r, skip, count)
        # Not saved tensors: each backward reads them as they then are and moves them, also when several forwards came first.
        ctx.memory = window, psi, pending
        ctx.warmup, ctx.alpha = warmup, alpha
        gain = scale if weight is None else scale * weight
        return x * gain if bias is None else torch.addcmul(bias, x, gain)

    @staticmethod
    @once_differentiable(_ONCE)
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_transforms("UnifiedNorm's backward pass in training")
        x, weight, t, scale, r, skip, count = ctx.saved_tensors
        window, psi, pending = ctx.memory
        gain = r if weight is None else r * weight
        work = dy * x
        along = scale * work.sum((0, 1))  # sum of dy z
        # Gradients of processes are averaged, so each one's dy is as many times that of a lone process; psi is the latter's.
        world = process_count()
        (total,) = sum_over_processes(along)
        k = gain * total / (count.clamp(min=1) * world)
        e, next_window, next_psi = backward_step(k, window, psi, t, skip, ctx.warmup, ctx.alpha)
        if pending is None:
            # Where the batch's moment was not finite, the scale is NaN or 0, and the forward pass moved nothing either.
            _replace(_usable(k, count) & (scale > 0).all(), (window, next_window), (psi, next_psi))
        else:
            mean, weight_so_far = pending
            mean.add_((k - mean) * (count / (weight_so_far + count).clamp(min=1)))
            weight_so_far.add_(count)
        dx = torch.mul(x, (-world * e) * scale.square(), out=work).addcmul_(dy, gain * scale)
        dweight, dbias = (None, None) if weight is None else (r * along, dy.sum((0, 1)))
        return dx, dweight, dbias, *[None] * 11


def _usable(k: Tensor, weight: Tensor) -> Tensor:
    # Loss scaling in half precision overflows now and then: the step is dropped, and must not be remembered.
    return (weight > 0) & k.isfinite()


def _replace(where: Tensor, *pairs: tuple[Tensor, Tensor]) -> None:
    """In each pair (old, new), new takes old's place `where` it may, in place."""
    for old, new in pairs:
        old.copy_(torch.where(where, new.to(old.dtype), old))
