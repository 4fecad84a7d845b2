"""One step of Unified Normalization as pure functions of the state before it: the statistics that are used, and the new state.

No value is read on the host: every condition is a tensor.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .statistics.median import median

R_LIMIT = 5.0  # r stays within [1/5, 5] ...
R_WARMUP = 1000  # ... and is 1 for this many steps, or for the whole warm-up if that is longer
TAU = 5.0  # deviations from the window's median that make an outlier
FLOOR = 0.2  # the smallest deviation, in log q: the entries of a short window may be equal by chance


class ForwardStep(NamedTuple):
    """t (1), the step's number from 1; all others (c) but `outliers` ()."""

    t: Tensor
    s2: Tensor  # tokens are divided by sqrt(s2 + eps)
    r: Tensor
    skip: Tensor  # channels that are normalised by this batch alone
    entry: Tensor  # goes into the window
    moved: Tensor  # goes into the running average
    outliers: Tensor


def forward_step(
    q: Tensor, window: Tensor, running: Tensor, iters: Tensor, warmup: int, eps: float, official: bool, filtration: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The fields of a `ForwardStep` that sees second moments q (c), after `iters` (1) earlier ones.

    Args:
        window: (m, c), the last m entries; step t writes row t mod m.
        running: (c).
    """
    window, running = window.to(q.dtype), running.to(q.dtype)
    size = window.shape[0]
    t = iters + 1
    if not filtration:
        entry, outlier = q.clone(), torch.zeros_like(q, dtype=torch.bool)
    elif official:
        entry, outlier = _official_rule(q, window, running, t, warmup)
    else:
        entry, outlier = _clip_outliers(q, window, t, eps)
    skip = outlier | (size == 1)  # one step is no window
    geometric = written(window, entry, t).log().mean(0).exp()
    early = (t <= size) | (t < warmup)
    smooth = torch.where(early, entry, geometric)
    s2 = torch.where(skip, q, smooth)
    r = ((s2 + eps).sqrt() / (running + eps).sqrt()).clamp(1 / R_LIMIT, R_LIMIT)
    r = torch.where((t <= max(R_WARMUP, warmup)) | skip, 1.0, r)
    # The release lets an outlier into the running average, and counts steps; ours counts channels.
    moved, outliers = (s2.clone(), outlier.any()) if official else (smooth, outlier.sum())
    return t, s2, r, skip, entry, moved, outliers.to(t.dtype)


def backward_step(
    k: Tensor, window: Tensor, psi: Tensor, t: Tensor, skip: Tensor, warmup: int, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    """e (c), which multiplies z in the input's gradient, and the new `window` (m, c) and `psi` (c), from k (c)."""
    window, psi = window.to(k.dtype), psi.to(k.dtype)
    window = written(window, torch.where(skip, psi, k), t)
    early = (t <= window.shape[0]) | (t < warmup)
    m = torch.where(early | skip, k, window.mean(0))
    psi = alpha * psi + (1 - alpha) * m
    return torch.where(skip, m, psi), window, psi


def written(window: Tensor, row: Tensor, t: Tensor) -> Tensor:
    """`window` (m, c) with step t's `row` (c) in its place."""
    size = window.shape[0]
    return torch.where((torch.arange(size, device=window.device) == t % size)[:, None], row, window)


def _official_rule(q: Tensor, window: Tensor, running: Tensor, t: Tensor, warmup: int) -> tuple[Tensor, Tensor]:
    """One channel whose arithmetic and geometric mean lie too far apart makes all channels outliers; v replaces their q."""
    roots = window.sqrt()
    # Of all channels together, before q is in the window. Written out: torch.var warns about a single number.
    spread = (roots - roots.mean()).square().sum() / (roots.numel() - 1) if roots.numel() > 1 else roots.sum() * torch.nan
    with_q = written(window, q, t)
    gap = with_q.mean(0) - with_q.log().mean(0).exp()
    outlier = ((gap > window.shape[0] * spread).any() & (t >= warmup)).expand_as(q)
    return torch.where(outlier, running, q), outlier


def _clip_outliers(q: Tensor, window: Tensor, t: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Per channel, log(q + eps) is held within TAU deviations of the window's median, once the window is full."""
    logs = (window + eps).log()
    middle = median(logs)
    reach = TAU * median((logs - middle).abs()).clamp(min=FLOOR)
    log_q = (q + eps).log()
    outlier = ((log_q - middle).abs() > reach) & (t > window.shape[0])
    clipped = (log_q.clamp(middle - reach, middle + reach).exp() - eps).clamp(min=0)
    return torch.where(outlier, clipped, q), outlier


# For torch.compile, an operator it cannot look into: otherwise inductor computes s2 and r once more for the backward pass, from
# buffers that have moved by then (see `power.py`). Eager needs no operator.
opaque_forward_step = torch.library.custom_op("dynavit::un_forward_step", forward_step, mutates_args=())


@opaque_forward_step.register_fake
def _forward_shapes(
    q: Tensor, window: Tensor, running: Tensor, iters: Tensor, warmup: int, eps: float, official: bool, filtration: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    def like_q() -> Tensor:
        return torch.empty_like(q)

    skip, outliers = torch.empty_like(q, dtype=torch.bool), iters.new_empty(())
    return torch.empty_like(iters), like_q(), like_q(), skip, like_q(), like_q(), outliers
