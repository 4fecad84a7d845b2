"""Batch moments with a memory: the base of `bn`, `sn`, `repbn` and `prepbn`."""

from typing import Any

import torch
from torch import Tensor

from ..beside import Beside
from ..contract import Grid, statistics_dtype
from ..fused import may_fuse
from ..passes import may_be_native, native
from .distributed import process_count, sum_over_processes
from .moments import moments, unbiased
from .smoothed import SmoothedNorm, is_recomputation
from .standardised import batch_standardised


class RunningMomentsNorm(SmoothedNorm):
    """A norm that uses the batch's moments per channel in training and their running averages at evaluation.

    running <- (1 - momentum) * running + momentum * batch, the variance unbiased. The moments are those of the real tokens of
    all processes. A batch without a token changes nothing; one token has no variance, so it changes `running_mean` only.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, dim: int, *, momentum: float = 0.1, **shared: Any) -> None:
        super().__init__(dim, rows=2, **shared)
        if not 0.0 <= momentum <= 1.0:
            raise ValueError(f"{type(self).__name__}: momentum is the weight of the new batch, between 0 and 1; got {momentum}")
        self.momentum = momentum
        self.register_buffer("running_mean", torch.empty(dim, **self.state_options))
        self.register_buffer("running_var", torch.empty(dim, **self.state_options))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.running_mean.zero_()
        self.running_var.fill_(1.0)

    def batch_moments(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance (c) of tokens (b, t, c): the batch's, which also move the running ones, or the running ones."""
        if not self.training:
            return self.running_mean.to(x.dtype), self.running_var.to(x.dtype)
        mean, var, count = moments(x, (0, 1), None if mask is None else mask[..., None], reduce=sum_over_processes)
        mean, var, count = mean.flatten(), var.flatten(), count.flatten()
        self.collect(torch.stack([mean, var]).detach(), count.expand(2)[:, None])
        return mean, var

    @torch.no_grad()
    def collect_counted(self, found: Tensor, count: int) -> None:
        """`collect` of moments (2, c) of so many tokens of this process, in one call of C where that is possible."""
        direct = self.counts_every_step and not self.recalibrating and found.dtype == self.pending.dtype
        if not direct or not may_be_native(found) or not may_be_native(self.pending):
            self.collect(found, found.new_full((2, 1), count))
        elif is_recomputation():
            return
        elif self.deferred:
            native.run_on_channels("merge_running", found, count, found, self.pending, self.pending_weight)
        else:
            state = (found, self.running_mean, self.running_var)
            broken = native.run_on_channels("move_running", found, count, self.momentum, *state)
            if broken:
                self.skipped_steps.add_(1)

    @property
    def counts_every_step(self) -> bool:
        """Whether `move` does nothing but move; a subclass with a schedule says when."""
        return True

    @torch.no_grad()
    def watch(self, x: Tensor, mask: Tensor | None) -> None:
        if mask is None and may_fuse(x) and process_count() == 1 and may_be_native(x):
            self.collect_counted(native.batch_moments(x.contiguous()), x.shape[0] * x.shape[1])
        else:
            self.batch_moments(x, mask)

    def merge(self, old: Tensor, old_weight: Tensor, new: Tensor, new_weight: Tensor) -> Tensor:
        """Moments of two sets of values together: the variance within the sets, and that between their means."""
        share = new_weight[:1] / (old_weight[:1] + new_weight[:1]).clamp(min=1)
        both = old + (new - old) * share
        between = (1 - share) * share * (new[:1] - old[:1]).square()
        return torch.cat([both[:1], both[1:] + between])

    def move(self, statistics: Tensor, weight: Tensor) -> None:
        self._towards(statistics, weight, self.momentum)

    def adopt(self, statistics: Tensor, weight: Tensor) -> None:
        self._towards(statistics, weight, 1.0)

    def _towards(self, statistics: Tensor, weight: Tensor, momentum: float) -> None:
        (mean, var), count = statistics, weight[0]
        # Counts are whole numbers: these are 1 from one token on and from two, else 0.
        self.running_mean.lerp_(mean, count.clamp(0, 1).mul_(momentum))
        self.running_var.lerp_(unbiased(var, count), (count - 1).clamp_(0, 1).mul_(momentum))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, momentum={self.momentum:g}"


class AffineAtEvaluation(RunningMomentsNorm):
    """Subtracts the mean and divides by the deviation of each channel; at evaluation one affine map, and computed as one."""

    def transform(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        if self.training:
            return self.train_share(x, mask, None)
        scale, shift = self.running_map()
        return x * scale.to(x.dtype) + shift.to(x.dtype)

    def train_share(self, x: Tensor, mask: Tensor | None, beside: Beside | None) -> Tensor:
        share = None if beside is None else beside.share
        weight, bias = self.gain_and_bias(x.dtype, share)
        eta = self.input_gain(x.dtype, share)
        if mask is None and may_fuse(x) and process_count() == 1:
            y, found = batch_standardised(x, weight, bias, eta, self.eps, beside)
            self.collect_counted(found, x.shape[0] * x.shape[1])
            return y
        mean, var = self.batch_moments(x, mask)
        y = (x - mean) * torch.rsqrt(var + self.eps)
        if weight is not None:
            y = y * weight
        if bias is not None:
            y = y + bias
        if eta is not None:
            y = y + eta * x
        return y if beside is None else beside.added_to(y, x)

    def input_gain(self, dtype: torch.dtype, share: Tensor | None) -> Tensor | None:
        """(1): how much of x itself is added in training, times the share; None: nothing."""
        return None

    def running_map(self) -> tuple[Tensor, Tensor]:
        """(scale, shift), both (c): the running moments and the affine parameters as one map."""
        scale = torch.rsqrt(self.running_var.to(statistics_dtype(self.running_var.dtype)) + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        shift = -self.running_mean * scale
        return scale, shift if self.bias is None else shift + self.bias

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """(scale, shift), both (c), such that this layer at evaluation is x -> scale * x + shift."""
        if self.training:
            raise RuntimeError(f"{type(self).__name__} is an affine map only at evaluation: call .eval() first")
        return self.running_map()
