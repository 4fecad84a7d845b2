"""Switchable Normalization. Luo et al. 2018, arXiv 1806.10779."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from .contract import Grid
from .factory import register_norm
from .share_logit import ONE, share_logit
from .statistics.moments import moments
from .statistics.running import RunningMomentsNorm


@register_norm("sn")
class SwitchableNorm(RunningMomentsNorm):
    r"""Learns how much of layer, instance and batch statistics to use; mean and variance each have their own mixture.

    $$ y = \gamma \odot \frac{x - \sum_k w_k \mu_k}{\sqrt{\sum_k w'_k \sigma_k^2 + \epsilon}} + \beta, \qquad
       k \in (\mathrm{ln}, \mathrm{in}, \mathrm{bn}), \quad w = \mathrm{softmax}(\lambda), \; w' = \mathrm{softmax}(\lambda') $$

    ln: over the channels of a token; in: over the tokens of a sample; bn: over all tokens of the batch (running at evaluation).
    All variances are biased (the running one unbiased, as in `bn`).

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$, `bias` $\beta$ (c); `mean_logit` $\lambda$,
    `var_logit` $\lambda'$ (3) in the order ln, in, bn, started at 0: equal parts.

    Args:
        momentum: weight of the new batch in the running moments.
    """

    sources = ("ln", "in", "bn")
    uses_heads = False
    starts_as = "ln"
    mixing_parameters = ("mean_logit", "var_logit")

    def __init__(self, dim: int, *, momentum: float = 0.1, **shared: Any) -> None:
        super().__init__(dim, momentum=momentum, **shared)
        factory = {"device": shared.get("device"), "dtype": shared.get("dtype")}
        self.mean_logit = nn.Parameter(torch.empty(len(self.sources), **factory))
        self.var_logit = nn.Parameter(torch.empty(len(self.sources), **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.mean_logit)
        nn.init.zeros_(self.var_logit)

    def start_at(self, share: float) -> None:
        """LayerNorm's share of the softmax over (ln, in, bn), and the rest in equal parts."""
        first = 2 * ONE if share == 1 else share_logit(share) + math.log(2)
        for logit in (self.mean_logit, self.var_logit):
            logit.copy_(logit.new_tensor([first, 0.0, 0.0]))

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        mean_ln, var_ln, _ = moments(x, (2,))
        mean_in, var_in, _ = moments(x, (1,), None if mask is None else mask[..., None])
        mean_bn, var_bn = self.batch_moments(x, mask)
        w = self.mean_logit.to(x.dtype).softmax(0)
        w_var = self.var_logit.to(x.dtype).softmax(0)
        mean = w[0] * mean_ln + (w[1] * mean_in + w[2] * mean_bn)
        var = w_var[0] * var_ln + (w_var[1] * var_in + w_var[2] * var_bn)
        return (x - mean) * torch.rsqrt(var + self.eps)

    @torch.no_grad()
    def scalars(self) -> dict[str, float]:
        """The mixing weights, for a log: mean_ln, mean_in, mean_bn, var_ln, var_in, var_bn."""
        names = [f"{moment}_{source}" for moment in ("mean", "var") for source in self.sources]
        weights = torch.cat([self.mean_logit.softmax(0), self.var_logit.softmax(0)])
        return dict(zip(names, weights.tolist(), strict=True))
