"""Coefficients of a feature norm's map by C, with their gradients. `FeatureNorm.train_share` has the equations."""

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..once_differentiable import once_differentiable
from ..passes import native
from ..transforms import is_batched
from .outlier_guard import FLOOR
from .projected_map import ONCE

EXPERTS = ("zscore", "minmax", "rms")  # in the order of feature.h


class Mixture(NamedTuple):
    """Which experts are mixed and how far the map may be from the batch's own."""

    experts: tuple[str, ...]
    groups: int
    eps: float
    log_reach: float
    shift_reach: float


class Coefficients(NamedTuple):
    """Of `projected_map`, all (c); `scale` and `shift` have derivatives."""

    scale: Tensor
    shift: Tensor
    projected: Tensor
    inverse: Tensor


def feature_map(
    statistics: Tensor,
    population: Tensor | None,
    gain: Tensor,
    bias: Tensor,
    eta: Tensor | None,
    logits: tuple[Tensor, Tensor] | None,
    mixture: Mixture,
) -> Coefficients:
    """From statistics (rows, c) of the batch, and the population (2k, c) or None: the batch itself.

    Args:
        gain, bias: (c).
        eta: (1).
        logits: of centres and of scales, (groups, k) each; None: one expert.
    """
    parts = (statistics, population, gain, bias, eta, *(logits or (None, None)))
    plain = (None if part is None else part.contiguous() for part in parts)
    return Coefficients(*_FeatureMap.apply(*plain, mixture))


def move_population(
    statistics: Tensor,
    population: Tensor,
    window: Tensor,
    steps: int,
    experts: tuple[str, ...],
    eps: float,
    alpha: float,
    tau: float,
) -> None:
    """Move the memory by one step's statistics, in place."""
    numbers = (len(experts), _numbers(experts), eps, alpha, tau, FLOOR, steps)
    native.run_on_channels("feature_move", population, *numbers, statistics, population, window)


def _numbers(experts: tuple[str, ...]) -> Any:
    return (ctypes.c_int64 * len(experts))(*map(EXPERTS.index, experts))


class _FeatureMap(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        statistics: Tensor,
        population: Tensor | None,
        gain: Tensor,
        bias: Tensor,
        eta: Tensor | None,
        centre_logit: Tensor | None,
        scale_logit: Tensor | None,
        mixture: Mixture,
    ) -> tuple[Tensor, ...]:
        experts, groups, *limits = mixture
        made = [torch.empty_like(gain) for _ in range(4)]
        kept = gain.new_empty(4 + 2 * len(experts), gain.shape[0])
        read = (statistics, population, gain, bias, eta, centre_logit, scale_logit)
        options = (len(experts), _numbers(experts), groups, *limits)
        native.run_on_channels("feature_map", gain, *options, *read, *made, kept)
        ctx.save_for_backward(statistics, gain, eta, centre_logit, scale_logit, kept)
        ctx.mixture = mixture
        ctx.mark_non_differentiable(*made[2:])
        return tuple(made)

    @staticmethod
    @once_differentiable(ONCE)
    def backward(ctx: Any, dscale: Tensor, dshift: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        statistics, gain, eta, centre_logit, scale_logit, kept = ctx.saved_tensors
        if is_batched(dscale) or is_batched(dshift):
            return None, None, *_gradients(dscale, dshift, ctx.mixture, *ctx.saved_tensors), None
        of_gain, *others = (None if part is None else torch.empty_like(part) for part in (gain, eta, centre_logit, scale_logit))
        options = (len(ctx.mixture.experts), ctx.mixture.groups, ctx.mixture.eps)
        read = (statistics, gain, centre_logit, scale_logit, kept, dscale.contiguous(), dshift.contiguous())
        native.run_on_channels("feature_map_backward", gain, *options, *read, of_gain, *others)
        return None, None, of_gain, dshift, *others, None


def _gradients(
    dscale: Tensor,
    dshift: Tensor,
    mixture: Mixture,
    statistics: Tensor,
    gain: Tensor,
    eta: Tensor | None,
    centre_logit: Tensor | None,
    scale_logit: Tensor | None,
    kept: Tensor,
) -> tuple[Tensor | None, ...]:
    """The same for many gradients at once."""
    mean, sigma = statistics[0], torch.sqrt(statistics[1] + mixture.eps)
    slope, offset, at_evaluation, centre = kept[:4]
    dgain = dscale * slope + dshift * offset
    deta = None if eta is None else (dscale * sigma + dshift * mean).sum().view(1)
    if centre_logit is None or scale_logit is None:
        return dgain, dshift, deta, None, None
    at_evaluation = gain * at_evaluation
    along = (-dshift * at_evaluation, -at_evaluation * (dscale * sigma + dshift * (mean - centre)))
    found = []
    for of_mean, logit, experts in zip(along, (centre_logit, scale_logit), kept[4:].chunk(2), strict=True):
        split, shares = experts.unflatten(1, (mixture.groups, -1)), logit.softmax(1).t()[..., None]  # (k, groups, .)
        apart = split - (shares * split).sum(0)
        found.append((of_mean.view(mixture.groups, -1) * shares * apart).sum(-1).t())
    return dgain, dshift, deta, *found
