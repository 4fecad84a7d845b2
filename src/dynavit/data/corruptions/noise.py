"""Noise: each value is disturbed by itself. Images (b, c, h, w) in [0, 1]; results may lie outside."""

import torch
from torch import Tensor

from .random import Numbers


def gaussian_noise(x: Tensor, numbers: Numbers, sigma: float) -> Tensor:
    return x + sigma * numbers.normal(*x.shape[1:])


def shot_noise(x: Tensor, numbers: Numbers, photons: float) -> Tensor:
    """Where x is 1, `photons` arrive on average, Poisson distributed.

    Counts come from u by the inverse of the distribution function: count k if P(K < k) <= u < P(K <= k). A byte has 256 values,
    so one sorted table holds all the distribution functions, the one of value v between v and v + 1.
    """
    most = int(photons + 10 * photons**0.5 + 10)
    count = torch.arange(most, dtype=torch.float64, device=x.device)
    rate = torch.arange(256, dtype=torch.float64, device=x.device)[:, None] * (photons / 255)
    below = torch.exp(torch.xlogy(count, rate) - rate - torch.lgamma(count + 1)).cumsum(1).clamp(max=1)
    table = (below + torch.arange(256, device=x.device)[:, None]).flatten()
    value = (x * 255).round()
    found = torch.searchsorted(table, value + numbers.uniform(*x.shape[1:]), right=True)
    return (found - value * most) / photons


def impulse_noise(x: Tensor, numbers: Numbers, amount: float) -> Tensor:
    """Salt and pepper: this part of the values becomes 0 or 1, both as often."""
    u = numbers.uniform(*x.shape[1:])
    return torch.where(u < amount, (u < amount / 2).to(x), x)
