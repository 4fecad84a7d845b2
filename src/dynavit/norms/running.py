"""Batch moments with a memory: what `bn` and `sn` share."""

from typing import Any

import torch
from torch import Tensor

from .contract import Norm, statistics_dtype
from .distributed import sum_over_processes
from .moments import moments, unbiased


class RunningMomentsNorm(Norm):
    """A norm that uses the batch's moments per channel in training and their running averages at evaluation.

    running <- (1 - momentum) * running + momentum * batch, the variance unbiased. The moments are those of the real tokens of
    all processes. A batch without a token changes nothing; one token has no variance, so it changes `running_mean` only.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, dim: int, *, momentum: float = 0.1, **shared: Any) -> None:
        super().__init__(dim, **shared)
        if not 0.0 <= momentum <= 1.0:
            raise ValueError(f"{type(self).__name__}: momentum is the weight of the new batch, between 0 and 1; got {momentum}")
        self.momentum = momentum
        # In half precision a running average stops moving once its steps are below one rounding unit.
        dtype = statistics_dtype(shared.get("dtype") or torch.get_default_dtype())
        self.register_buffer("running_mean", torch.empty(dim, device=shared.get("device"), dtype=dtype))
        self.register_buffer("running_var", torch.empty(dim, device=shared.get("device"), dtype=dtype))

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
        with torch.no_grad():
            momentum = torch.full_like(count, self.momentum)
            _move(self.running_mean, mean, torch.where(count > 0, momentum, 0.0))
            _move(self.running_var, unbiased(var, count), torch.where(count > 1, momentum, 0.0))
        return mean, var

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, momentum={self.momentum:g}"


def _move(running: Tensor, new: Tensor, weight: Tensor) -> None:
    running.copy_(torch.lerp(running.to(new.dtype), new, weight))
