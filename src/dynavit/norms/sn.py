"""Switchable Normalization. Luo et al. 2018, arXiv 1806.10779."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .contract import Grid
from .factory import register_norm
from .fused import fused, may_fuse
from .linear_share import LinearShares, linear_share
from .passes import may_be_native
from .statistics.distributed import process_count
from .statistics.moments import moments
from .statistics.running import RunningMomentsNorm
from .statistics.switched import NativeSwitched, Switched


@register_norm("sn")
class SwitchableNorm(LinearShares, RunningMomentsNorm):
    r"""Learns how much of layer, instance and batch statistics to use; mean and variance each have their own mixture.

    $$ y = \gamma \odot \frac{x - \sum_k w_k \mu_k}{\sqrt{\sum_k w'_k \sigma_k^2 + \epsilon}} + \beta, \qquad
       k \in (\mathrm{ln}, \mathrm{in}, \mathrm{bn}), \quad w = \mathrm{softmax}(\lambda), \; w' = \mathrm{softmax}(\lambda') $$

    ln: over the channels of a token; in: over the tokens of a sample; bn: over all tokens of the batch (running at evaluation).
    All variances are biased (the running one unbiased, as in `bn`).

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$, `bias` $\beta$ (c); `mean_logit` $\lambda$,
    `var_logit` $\lambda'$ (3) in the order ln, in, bn, started at 0: equal parts. A layer that was started as LayerNorm
    exactly has `mean_rest`, `var_rest` (2) instead: the shares of in and bn, ln having what is left (see `linear_share`).

    Args:
        momentum: weight of the new batch in the running moments.
        shares: what is learned: the softmax of a "logit", or "linear", numbers kept in [0, 1] that can be LayerNorm exactly,
            which is where a training from weights with LayerNorm then begins.
    """

    sources = ("ln", "in", "bn")
    uses_heads = False
    starts_as = "ln"
    mixing_parameters: tuple[str, ...] = ("mean_logit", "var_logit")
    linear = "rest"
    mean_logit: nn.Parameter | None
    var_logit: nn.Parameter | None

    def __init__(self, dim: int, *, momentum: float = 0.1, shares: Literal["logit", "linear"] = "logit", **shared: Any) -> None:
        super().__init__(dim, momentum=momentum, **shared)
        factory = {"device": shared.get("device"), "dtype": shared.get("dtype")}
        self.mean_logit = nn.Parameter(torch.empty(len(self.sources), **factory))
        self.var_logit = nn.Parameter(torch.empty(len(self.sources), **factory))
        self.mean_rest: nn.Parameter | None = None
        self.var_rest: nn.Parameter | None = None
        self.choose_shares(shares)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for parameter in (self.mean_logit, self.var_logit):
            if parameter is not None:
                nn.init.zeros_(parameter)
        for parameter in (self.mean_rest, self.var_rest):
            if parameter is not None:
                nn.init.constant_(parameter, 1 / len(self.sources))

    def start_at(self, share: float) -> None:
        """Set LayerNorm's share; in and bn have equal parts of the rest. 0 and 1 make the shares linear, see the class."""
        if share in (0, 1):
            self.make_shares_linear()
        for logit in (self.mean_logit, self.var_logit):
            if logit is not None:
                logit.copy_(logit.new_tensor([math.log(2 * share / (1 - share)), 0.0, 0.0]))
        for rest in (self.mean_rest, self.var_rest):
            if rest is not None:
                rest.fill_((1 - share) / 2)

    def linear_shares(self, logit: Tensor) -> Tensor:
        return logit.softmax(0)[1:]  # ln has what is left

    def mixing_weights(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(3,), (3,): the shares of ln, in and bn in the mean and in the variance."""

        def weights(logit: Tensor | None, rest: Tensor | None) -> Tensor:
            if rest is None:
                assert logit is not None
                return logit.to(dtype).softmax(0)
            others = linear_share(rest, dtype, self.training)
            others = others / others.sum().clamp_min(1)
            return torch.cat([1 - others.sum(0, keepdim=True), others])

        return weights(self.mean_logit, self.mean_rest), weights(self.var_logit, self.var_rest)

    def transform(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        if not self.training or mask is not None or not may_fuse(x) or process_count() > 1:
            return super().transform(x, grid, mask)
        inputs = (x, *self.gain_and_bias(x.dtype), *self.mixing_weights(x.dtype))
        if may_be_native(x):
            y, *_, found = fused(NativeSwitched(self.eps), *inputs)
        else:
            y, *_, mean, var = fused(Switched(self.eps), *inputs)
            found = torch.cat([mean, var]).view(2, -1)
        self.collect_counted(found, x.shape[0] * x.shape[1])
        return y

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        mean_ln, var_ln, _ = moments(x, (2,))
        mean_in, var_in, _ = moments(x, (1,), None if mask is None else mask[..., None])
        mean_bn, var_bn = self.batch_moments(x, mask)
        w, w_var = self.mixing_weights(x.dtype)
        mean = w[0] * mean_ln + (w[1] * mean_in + w[2] * mean_bn)
        var = w_var[0] * var_ln + (w_var[1] * var_in + w_var[2] * var_bn)
        return (x - mean) * torch.rsqrt(var + self.eps)

    @torch.no_grad()
    def scalars(self) -> dict[str, float]:
        """For logs, also the mixing weights: mean_ln, mean_in, mean_bn, var_ln, var_in, var_bn."""
        names = [f"{moment}_{source}" for moment in ("mean", "var") for source in self.sources]
        weights = torch.cat(self.mixing_weights(torch.float64))
        return dict(zip(names, weights.tolist(), strict=True)) | super().scalars()
