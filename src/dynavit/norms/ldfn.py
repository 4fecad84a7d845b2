"""Learnable dynamic feature normalisation: LayerNorm that becomes a learned mixture of feature normalisations."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .annealed import AnnealedNorm, Evaluation
from .contract import statistics_dtype
from .factory import register_norm
from .feature import FeatureNorm
from .passes import native
from .statistics.distributed import sum_over_processes, whole, write
from .statistics.moments import moments
from .statistics.ranges import Extrema

Groups = Literal["layer", "head", "channel"]


@register_norm("ldfn")
class LearnableDynamicFeatureNorm(AnnealedNorm, FeatureNorm):
    r"""Begins as LayerNorm and ends as a mixture of z-score and min-max whose weights are learned; that folds away.

    $$ y = \lambda \, \mathrm{LN}(x) + (1 - \lambda) \Big( \gamma \odot \frac{x - C}{D} + \beta + \eta x \Big), \qquad
       C = \sum_k w_k C_k, \quad \log D = \sum_k w'_k \log D_k $$

    $C_k, D_k$ (c) are the smoothed centre and scale of expert k: those of `zscore`, of `minmax` and, on request, 0 and the
    quadratic mean. w and w' are softmaxes over the experts, one pair per head, equal at first. Training goes as in `zscore`;
    the weights get the gradient of the map at evaluation.

    $\lambda$ (`blend`) is 1 for the share `warmup` of the run, falls linearly to 0 over the share `anneal`, and stays 0. The
    training loop tells where it is with `set_progress`. When it begins to fall, $\gamma$ and $\beta$ are set to the
    least-squares fit of LN(x) by a line in x, per channel, from moments smoothed since the first step. The share of LN's
    variance that no such line explains is `unexplained` in `scalars()`: how much this layer will have to relearn.

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$, `bias` $\beta$, `ln_weight`, `ln_bias` (c),
    `eta` (1), `centre_logit` and `scale_logit` (groups, experts); state as in `FeatureNorm`, `blend_parts`, `line` (5, c) and
    `fitted`.

    Args:
        groups: channels that share mixing weights: the whole "layer", a "head", or each "channel" has its own.
        rms: a third expert, 0 and the quadratic mean.
        extrema, quantile: as in `minmax`.
        alpha, r_max, d_max, tau, eta: as in `zscore`. Here eta is learned from 0; None leaves it out.
        warmup, anneal, evaluate: as in every annealed norm.
    """

    line: Tensor
    fitted: Tensor

    def __init__(
        self,
        dim: int,
        *,
        groups: Groups = "head",
        rms: bool = False,
        extrema: Extrema = "image_mean",
        quantile: float = 0.005,
        alpha: float = 0.95,
        r_max: float = 3.0,
        d_max: float = 5.0,
        tau: float = 5.0,
        eta: float | None = 0.0,
        warmup: float = 0.1,
        anneal: float = 0.6,
        evaluate: Evaluation = "blend",
        **shared: Any,
    ) -> None:
        if groups not in ("layer", "head", "channel"):
            raise ValueError(f"{type(self).__name__}: groups is 'layer', 'head' or 'channel'; got {groups!r}")
        super().__init__(
            dim,
            experts=("zscore", "minmax", "rms") if rms else ("zscore", "minmax"),
            extrema=extrema,
            quantile=quantile,
            alpha=alpha,
            r_max=r_max,
            d_max=d_max,
            tau=tau,
            eta=eta,
            warmup=warmup,
            anneal=anneal,
            evaluate=evaluate,
            more_rows=3,
            **shared,
        )
        self.groups = groups

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=shared.get("device"), dtype=shared.get("dtype")))

        count = {"layer": 1, "head": self.heads, "channel": dim}[groups]
        self.centre_logit = parameter(count, len(self.experts))
        self.scale_logit = parameter(count, len(self.experts))
        self.register_buffer("line", torch.empty(5, dim, **self.state_options))
        self.register_buffer("fitted", torch.empty((), device=shared.get("device"), dtype=torch.bool))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.centre_logit)
        nn.init.zeros_(self.scale_logit)
        self.line.zero_()
        self.fitted.fill_(False)
        self.before_annealing = True

    # ---- The map

    def affine_map(self) -> tuple[Tensor, Tensor]:
        self.check_annealed()
        return super().affine_map()

    def mixture(self, experts: Tensor) -> tuple[Tensor, Tensor]:
        return self._mixed(experts, self.centre_logit, self.scale_logit)

    def mixing_logits(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.centre_logit.to(dtype), self.scale_logit.to(dtype)

    def _mixed(self, experts: Tensor, centre_logit: Tensor, scale_logit: Tensor) -> tuple[Tensor, Tensor]:
        centres, log_scales = experts.chunk(2)
        return self._mean(centres, centre_logit), self._mean(log_scales, scale_logit)

    def _mean(self, experts: Tensor, logit: Tensor) -> Tensor:
        """(k, ..., c) -> (..., c), by each channel's mixing weights."""
        shares = logit.to(experts.dtype).softmax(1).t()  # (k, groups)
        shares = shares.view(len(shares), *[1] * (experts.dim() - 2), -1, 1)
        return (shares * experts.unflatten(-1, (logit.shape[0], -1))).sum(0).flatten(-2)

    # ---- LayerNorm as a line in x

    def batch_statistics(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Those of the experts and, until annealing begins, LN's mean and variance and its covariance with x."""
        if self.before_annealing and mask is None and self.statistics_by_c(x):
            return self.counted_statistics(x, line=True)
        statistics, weight = super().batch_statistics(x, mask)
        if not self.before_annealing:
            return torch.cat([statistics, statistics.new_zeros(3, self.dim)]), torch.cat([weight, weight.new_zeros(3, 1)])
        count = weight[:1]
        # Without its affine map, which may have changed by the time of the fit. Padding is 0 in x, and so it is here.
        normed = F.layer_norm(x, (self.dim,), eps=self.eps)
        mean, var, _ = moments(normed, (0, 1), None if mask is None else mask[..., None], reduce=sum_over_processes)
        (products,) = sum_over_processes(((x - statistics[0]) * normed).sum((0, 1)))
        rows = torch.stack([mean.flatten(), var.flatten(), products / count.clamp(min=1).squeeze()])
        return torch.cat([statistics, rows]), torch.cat([weight, count.expand(3, 1)])

    def merge(self, old: Tensor, old_weight: Tensor, new: Tensor, new_weight: Tensor) -> Tensor:
        share = new_weight[-1] / (old_weight[-1] + new_weight[-1]).clamp(min=1)
        line = _join(_line(old), _line(new), share)
        return torch.cat([super().merge(old, old_weight, new, new_weight), line[2:]])

    def move(self, statistics: Tensor, weight: Tensor) -> None:
        if self._moves_by_c(statistics, weight):
            if weight[-1].item() > 1:
                taken = 1.0 if self.steps.item() == 0 else 1.0 - self.alpha
                native.run_on_channels("line_move", self.line, taken, statistics, statistics[-3:], self.line)
        else:
            share = torch.where(self.steps == 0, 1.0, self.line.new_full((), 1.0 - self.alpha))
            self.line.copy_(_join(self.line, _line(statistics), torch.where(weight[-1] > 1, share, 0.0)))
        super().move(statistics, weight)

    def set_progress(self, step: int, total: int) -> None:
        super().set_progress(step, total)
        FeatureNorm.set_progress(self, step, total)
        if self.before_annealing and step >= max(1.0, self.warmup * total):
            self.before_annealing = False
            self._fit()

    @torch.no_grad()
    def _fit(self) -> None:
        """Set weight and bias so that the map at evaluation is the line, unless they were set before.

        Between steps, where sharded training has parameters in pieces: what is written into whole ones during a step is lost.
        """
        wide = statistics_dtype(self.line.dtype)
        mean, var, ln_mean, _, covariance = self.line.to(wide)
        centre, log_scale = self._mixed(self.population.to(wide), whole(self.centre_logit), whole(self.scale_logit))
        first = ~self.fitted & (self.steps > 0)
        if self.weight is not None and self.bias is not None and self.ln_weight is not None and self.ln_bias is not None:
            ln_weight = whole(self.ln_weight)
            # eps as in the scales: a channel that does not vary explains nothing.
            slope = ln_weight * covariance / (var + self.eps)
            intercept = ln_weight * ln_mean + whole(self.ln_bias) - slope * mean
            own = slope if self.eta is None else slope - whole(self.eta)
            write(self.weight, torch.where(first, own * log_scale.exp(), whole(self.weight)))
            write(self.bias, torch.where(first, intercept + own * centre, whole(self.bias)))
        self.fitted.logical_or_(first)

    # ---- For logs

    def scalars(self) -> dict[str, float]:
        """For logs, also LayerNorm's share, how much of it no line explains, and how far the mixing weights have moved."""
        values = {"blend": float(self.blend), "unexplained": self._unexplained()}
        if self.eta is not None:
            values["eta"] = float(self.eta.detach())
        for name, logit in (("centre", self.centre_logit), ("scale", self.scale_logit)):
            shares = logit.detach().double().softmax(1)
            values |= {f"{name}_{expert}": float(share) for expert, share in zip(self.experts, shares.mean(0), strict=True)}
            values[f"{name}_moved"] = float((shares - 1 / len(self.experts)).abs().sum(1).mean() / 2)
        return values | super().scalars()

    def _unexplained(self) -> float:
        """1 - R^2 of LN(x) by a line in x per channel, over all channels."""
        _, var, _, ln_var, covariance = self.line.double()
        gain = 1.0 if self.ln_weight is None else self.ln_weight.detach().double().square()
        total = (gain * ln_var).sum()
        return float(1 - (gain * covariance.square() / (var + self.eps)).sum() / total) if total > 0 else 1.0

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, anneal={self.anneal:g}, groups={self.groups!r}, evaluate={self.evaluate!r}" + (
            ", rms=True" if "rms" in self.experts else ""
        )


def _line(statistics: Tensor) -> Tensor:
    """Of all statistics (rows, c), the five that the line needs: x's mean and variance, LN's, and their covariance."""
    return torch.cat([statistics[:2], statistics[-3:]])


def _join(old: Tensor, new: Tensor, share: Tensor) -> Tensor:
    """The five moments (5, c) of two sets of values together, of which the second has this share."""
    x, ln = new[0] - old[0], new[2] - old[2]
    between = torch.stack([torch.zeros_like(x), x.square(), torch.zeros_like(x), ln.square(), x * ln])
    return old + (new - old) * share + share * (1 - share) * between
