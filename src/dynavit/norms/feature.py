"""Feature normalisation: the base of `zscore`, `minmax` and `ldfn`.

Each channel is moved by a centre and divided by a scale. An *expert* is one way to measure the two in a batch:

    zscore   mean,    sqrt(var + eps)
    minmax   middle,  sqrt(spread^2 + eps)      middle and half range over images, see statistics/ranges.py
    rms      0,       sqrt(mean^2 + var + eps)

The smoothed experts (C, D) are the map at evaluation. In training the batch's own (c, d) are corrected towards them, as in
batch renormalisation (Ioffe 2017, arXiv 1702.03275):

    u = r (x - c) / d + delta,    r = clip(d / D, 1 / r_max, r_max),    delta = clip((c - C) / D, -d_max, d_max)

Unclipped this is (x - C) / D, the map of evaluation. The limits (r_max, d_max) start at (1, 0), the batch alone.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from .beside import Beside
from .contract import Grid, statistics_dtype
from .passes import may_be_native, native
from .statistics.distributed import process_count, sum_over_processes
from .statistics.feature_map import Mixture, feature_map, move_population
from .statistics.moments import moments
from .statistics.outlier_guard import guard
from .statistics.projected_map import native_projected_map, projected_map
from .statistics.ranges import Extrema, batch_range, image_ranges, normal_range, normal_range_of
from .statistics.smoothed import SmoothedNorm, is_recomputation
from .transforms import need_own_backward

WINDOW = 8
# Assumed length of a run whose loop never calls `set_progress`.
ASSUMED_STEPS = 10_000
STATE = ("population", "steps", "opening")


class FeatureNorm(SmoothedNorm):
    """Base of feature normalisations: y = weight * u + bias + eta * x.

    The gradient of x is closed (projected_map.py): that of a batch norm at the scale d / r, without the sparse sub-gradients of
    max and min. State: `population` (2k, c), centres and then log scales of k experts, smoothed; `window` (8, 2k, c), those of
    the last steps; `steps`; `opening`, how far the limits are open, 0 to 1. A batch with fewer than two tokens moves nothing.

    Args:
        experts: their names; more than one need `mixture`.
        extrema: the range is the "image_mean" of each image's own, the mean of each image's "quantile" range, or that of the
            whole "batch".
        quantile: q of extrema="quantile".
        alpha: weight of the old value in the smoothed statistics.
        warmup: share of the run with the batch's statistics alone; the limits then open over as long a time.
        r_max, d_max: the limits in the end.
        tau: statistics of a step beyond this many deviations from those of recent steps are clipped before they are smoothed.
        eta: start of the weight of x itself, one learned number; None leaves it out.
    """

    population: Tensor
    window: Tensor
    steps: Tensor
    opening: Tensor
    last_population: Tensor
    last_steps: Tensor
    last_opening: Tensor

    def __init__(
        self,
        dim: int,
        *,
        experts: tuple[str, ...],
        extrema: Extrema = "image_mean",
        quantile: float = 0.005,
        alpha: float = 0.95,
        warmup: float = 0.1,
        r_max: float = 3.0,
        d_max: float = 5.0,
        tau: float = 5.0,
        eta: float | None = None,
        more_rows: int = 0,
        **shared: Any,
    ) -> None:
        super().__init__(dim, rows=(4 if "minmax" in experts else 2) + more_rows, **shared)
        name = type(self).__name__
        if extrema not in ("image_mean", "quantile", "batch"):
            raise ValueError(f"{name}: extrema is 'image_mean', 'quantile' or 'batch'; got {extrema!r}")
        if not 0 < quantile < 0.5:
            raise ValueError(f"{name}: quantile is the share of tokens beyond each end, between 0 and 0.5; got {quantile}")
        if not 0 <= alpha < 1:
            raise ValueError(f"{name}: alpha is the weight of the old value, at least 0 and below 1; got {alpha}")
        if not 0 <= warmup <= 1:
            raise ValueError(f"{name}: warmup is a share of the training run, between 0 and 1; got {warmup}")
        if not (1 <= r_max < math.inf and 0 <= d_max < math.inf and tau > 0):
            raise ValueError(f"{name}: r_max >= 1, d_max >= 0 and tau > 0 are finite limits; got {r_max}, {d_max} and {tau}")
        self.experts, self.extrema, self.quantile = experts, extrema, quantile
        self.alpha, self.warmup, self.r_max, self.d_max, self.tau, self.eta_init = alpha, warmup, r_max, d_max, tau, eta
        self.told_progress = False
        # Not a scalar: sharded training splits parameters along their first axis.
        options = {"device": shared.get("device"), "dtype": shared.get("dtype")}
        self.eta = None if eta is None else nn.Parameter(torch.empty(1, **options))
        rows = 2 * len(experts)
        self.register_buffer("population", torch.empty(rows, dim, **self.state_options))
        self.register_buffer("window", torch.empty(WINDOW, rows, dim, **self.state_options))
        self.register_buffer("steps", torch.empty((), device=shared.get("device"), dtype=torch.int64))
        self.register_buffer("opening", torch.empty((), **self.state_options))
        # State that the last forward call found, for the call that repeats it inside the backward pass.
        for state in STATE:
            self.register_buffer(f"last_{state}", torch.zeros_like(getattr(self, state)), persistent=False)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.eta is not None and self.eta_init is not None:
            nn.init.constant_(self.eta, self.eta_init)
        for state in (self.population, self.window, self.steps, self.opening):
            state.zero_()

    # ---- The map

    def transform(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        if self.training:
            return self.train_share(x, mask, None)
        scale, shift = self.population_map()
        return x * scale.to(x.dtype) + shift.to(x.dtype)

    def train_share(self, x: Tensor, mask: Tensor | None, beside: Beside | None) -> Tensor:
        share = None if beside is None else beside.share
        need_own_backward(f"{type(self).__name__} in training")
        if mask is None and self.statistics_by_c(x) and self.population.dtype == x.dtype:
            return self._train_by_c(x, beside)
        with torch.no_grad():
            statistics, weight = self.batch_statistics(x, mask)
            batch = self.measure(statistics, weight)
            population, opening = self._state_in_use(batch)
            self.collect(statistics, weight)
            mean, sigma = statistics[0], torch.sqrt(statistics[1] + self.eps)
        # Both at once: (2k, 2, c), of which only the population's has a gradient.
        both_centres, both_log_scales = self.mixture(torch.stack([batch, population], 1))
        batch_centre, batch_log_scale = both_centres[0].detach(), both_log_scales[0].detach()
        centre, log_scale = both_centres[1], both_log_scales[1]
        gain, bias = self._affine(x.dtype, share)
        with torch.no_grad():
            reach = opening * math.log(self.r_max)
            r = torch.clamp(batch_log_scale - log_scale, -reach, reach).exp()
            reach = opening * self.d_max
            delta = torch.clamp((batch_centre - centre) * torch.exp(-log_scale), -reach, reach)
            slope = r * sigma * torch.exp(-batch_log_scale)
            offset = delta + r * (mean - batch_centre) * torch.exp(-batch_log_scale)
        scale, shift, projected = gain * slope, gain * offset + bias, gain.detach() * slope
        if len(self.experts) > 1:
            # Nothing in value. The mixture gets the gradient of the map at evaluation, gain * (x - centre) / exp(log_scale).
            at_evaluation = gain.detach() * torch.exp(-log_scale)
            scale = scale + _gradient_only(at_evaluation * sigma)
            shift = shift + _gradient_only(at_evaluation * (mean - centre))
        if self.eta is not None:
            eta = self.eta.to(x.dtype) if share is None else self.eta.to(x.dtype) * share
            scale, shift = scale + eta * sigma, shift + eta * mean
        whole = mask is None and process_count() == 1
        return projected_map(x, mean, sigma, scale, shift, projected, weight[0], beside, whole)

    @torch.no_grad()
    def watch(self, x: Tensor, mask: Tensor | None) -> None:
        self.collect(*self.batch_statistics(x, mask))

    def _train_by_c(self, x: Tensor, beside: Beside | None) -> Tensor:
        """`train_share` with the same equations in C."""
        share = None if beside is None else beside.share
        with torch.no_grad():
            statistics, weight = self.batch_statistics(x, None)
            population, steps, opening = self._state_found()
            open_by = 0.0 if self.recalibrating else opening.item()
        gain, bias = self._affine(x.dtype, share)
        eta = None if self.eta is None else self.eta.to(x.dtype)
        logits = self.mixing_logits(x.dtype)
        mixture = Mixture(
            self.experts,
            1 if logits is None else len(logits[0]),
            self.eps,
            open_by * math.log(self.r_max),
            open_by * self.d_max,
        )
        eta = eta if eta is None or share is None else eta * share
        found = feature_map(statistics, population if steps.item() else None, gain, bias, eta, logits, mixture)
        self.collect(statistics, weight)
        return native_projected_map(x, statistics[0], found.inverse, found.scale, found.shift, found.projected, beside)

    def mixing_logits(self, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Of centres and scales, (groups, k) each; None: there is one expert."""
        return None

    def population_map(self) -> tuple[Tensor, Tensor]:
        """(scale, shift), both (c): the smoothed statistics, the affine parameters and eta as one map."""
        centre, log_scale = self.mixture(self.population.to(statistics_dtype(self.population.dtype)))
        gain, bias = self._affine(log_scale.dtype)
        scale = gain * torch.exp(-log_scale)
        shift = bias - scale * centre
        return scale if self.eta is None else scale + self.eta, shift

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """(scale, shift), both (c), such that this layer at evaluation is x -> scale * x + shift."""
        if self.training:
            raise RuntimeError(f"{type(self).__name__} is an affine map only at evaluation: call .eval() first")
        return self.population_map()

    def mixture(self, experts: Tensor) -> tuple[Tensor, Tensor]:
        """Centre and log scale (..., c) from those of the experts (2k, ..., c)."""
        return experts[0], experts[1]

    def _affine(self, dtype: torch.dtype, share: Tensor | None = None) -> tuple[Tensor, Tensor]:
        gain, bias = self.gain_and_bias(dtype, share)
        if gain is None or gain.dim() == 0:
            gain = self.population.new_ones(self.dim, dtype=dtype) * (1.0 if gain is None else gain)
        return gain, self.population.new_zeros(self.dim, dtype=dtype) if bias is None else bias

    # ---- Statistics

    def batch_statistics(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rows (rows, c) and their weights (rows, 1): mean, variance, and middle, spread (extrema="batch": min, max)."""
        if mask is None and self.statistics_by_c(x):
            return self.counted_statistics(x)
        mean, var, count = moments(x, (0, 1), None if mask is None else mask[..., None], reduce=sum_over_processes)
        rows, weights = [mean.view(1, -1), var.view(1, -1)], [count.view(1, 1)] * 2
        if "minmax" in self.experts:
            if self.extrema == "batch":
                rows, weights = [*rows, batch_range(x, mask)], weights * 2
            else:
                ranges, images = image_ranges(x, mask, self.quantile if self.extrema == "quantile" else 0.0)
                rows, weights = [*rows, ranges], [*weights, images]
        return torch.cat(rows), torch.cat(weights)

    def statistics_by_c(self, x: Tensor) -> bool:
        """Whether one call of C finds the statistics of tokens x (b, t, c) without a mask."""
        if torch.compiler.is_compiling() or process_count() > 1 or not x.numel() or not may_be_native(x):
            return False
        return "minmax" not in self.experts or (self.extrema == "image_mean" and x.shape[1] > 1)

    def counted_statistics(self, x: Tensor, line: bool = False) -> tuple[Tensor, Tensor]:
        """`batch_statistics` by C, with rows about LayerNorm as a line in x if they are asked for."""
        samples, tokens, _ = x.shape
        ranges = "minmax" in self.experts
        unit = 0.5 / normal_range_of(tokens) if ranges else None
        rows = native.batch_moments(x.contiguous(), unit, self.eps if line else None)
        counts = [samples * tokens] * 2 + [samples] * 2 * ranges + [samples * tokens] * 3 * line
        return rows, x.new_tensor(counts)[:, None]

    def merge(self, old: Tensor, old_weight: Tensor, new: Tensor, new_weight: Tensor) -> Tensor:
        """Exact for two sets of tokens of different images."""
        share = new_weight / (old_weight + new_weight).clamp(min=1)
        both = old + (new - old) * share
        between = (1 - share[0]) * share[0] * (new[0] - old[0]).square()
        rows = [both[:1], both[1:2] + between]
        if "minmax" in self.experts:
            ranges = both[2:4]
            if self.extrema == "batch":
                outer = torch.stack([torch.minimum(old[2], new[2]), torch.maximum(old[3], new[3])])
                ranges = torch.where(old_weight[2:4] > 0, torch.where(new_weight[2:4] > 0, outer, old[2:4]), new[2:4])
            rows.append(ranges)
        return torch.cat(rows)

    def measure(self, statistics: Tensor, weight: Tensor) -> Tensor:
        """The experts (2k, c), centres and then log scales, from statistics (rows, c) of weight (rows, 1)."""
        mean, var = statistics[:2]
        centres, squares = [], []
        for expert in self.experts:
            if expert == "zscore":
                centre, square = mean, var
            elif expert == "minmax":
                centre, square = self._middle_and_square(statistics, weight)
            else:
                centre, square = torch.zeros_like(mean), var + mean.square()
            centres.append(centre)
            squares.append(square)
        return torch.stack([*centres, *(torch.log(square + self.eps) / 2 for square in squares)])

    def _middle_and_square(self, statistics: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        var, first, second = statistics[1:4]
        if self.extrema == "batch":
            count = weight[0]
            spread = (second - first) / (2 * torch.where(count > 1, normal_range(count), 1.0))
            return (first + second) / 2, spread.square()
        # Images of one token have a middle but no spread: theirs is the standard deviation of the batch.
        with_spread = weight[3] / weight[2].clamp(min=1)
        return first, torch.lerp(torch.sqrt(var), second, with_spread).square()

    # ---- Memory

    def _state_in_use(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """The population (2k, c) before this call moves it, in the first call the batch itself, and the opening ()."""
        in_use = _opaque_in_use if torch.compiler.is_compiling() else _in_use
        population, opening = in_use(batch, *self._state_found())
        # Recalibration looks at weights that the population was not made with.
        return population, torch.zeros_like(opening) if self.recalibrating else opening

    def _state_found(self) -> tuple[Tensor, Tensor, Tensor]:
        """Population, steps and opening as this call, or the call that it repeats, finds them."""
        if is_recomputation():
            return self.last_population, self.last_steps, self.last_opening
        if not torch.compiler.is_compiling():
            for name in STATE:
                getattr(self, f"last_{name}").copy_(getattr(self, name))
        return self.population, self.steps, self.opening

    def move(self, statistics: Tensor, weight: Tensor) -> None:
        if self._moves_by_c(statistics, weight):
            steps = int(self.steps.item())
            rule = (self.experts, self.eps, self.alpha, self.tau)
            move_population(statistics, self.population, self.window, steps, *rule)
            self.steps.add_(1)
            if not self.told_progress:
                self.opening.fill_(min(1.0, max(0.0, self._opened((steps + 1) / ASSUMED_STEPS))))
            return
        wide = statistics_dtype(statistics.dtype)
        new, window, old = self.measure(statistics.to(wide), weight.to(wide)), self.window.to(wide), self.population.to(wide)
        log_scales = window[:, len(self.experts) :].mean(0)
        unit = torch.cat([log_scales.exp(), torch.ones_like(log_scales)])
        new = torch.where(self.steps < WINDOW, new, guard(new, window, unit, self.tau))
        moved = torch.where(self.steps == 0, new, torch.lerp(new, old, self.alpha))
        seen = weight[0] > 1
        self.population.copy_(torch.where(seen, moved, old))
        self.window.copy_(torch.where(seen, torch.cat([window[1:], new[None]]), window))
        self.steps.add_(seen.squeeze())
        if not self.told_progress:
            self.opening.copy_(self._opened(self.steps / ASSUMED_STEPS).clamp(0, 1))

    def _moves_by_c(self, statistics: Tensor, weight: Tensor) -> bool:
        """Whether this is an ordinary step, of two tokens or more in each image, whose numbers C reads."""
        if torch.compiler.is_compiling() or statistics.dtype != self.population.dtype or not may_be_native(statistics):
            return False
        tokens, *_ = counts = weight.flatten().tolist()
        return tokens > 1 and ("minmax" not in self.experts or (self.extrema != "batch" and counts[2] == counts[3]))

    def adopt(self, statistics: Tensor, weight: Tensor) -> None:
        wide = statistics_dtype(statistics.dtype)
        new, seen = self.measure(statistics.to(wide), weight.to(wide)), weight[0] > 1
        self.population.copy_(torch.where(seen, new, self.population))
        self.window.copy_(torch.where(seen, new, self.window))
        self.steps.copy_(torch.where(seen.squeeze(), self.steps.clamp(min=1), self.steps))

    def set_progress(self, step: int, total: int) -> None:
        """Called before step number `step`, from 0, of `total`: opens the limits as far as is due."""
        self.told_progress = True
        self.opening.fill_(min(1.0, max(0.0, self._opened(step / total))))

    def _opened(self, progress: Any) -> Any:
        return (progress - self.warmup) / max(self.warmup, 1e-9)

    def extra_repr(self) -> str:
        own = "".join(f", {name}={getattr(self, name):g}" for name in ("alpha", "warmup", "r_max", "d_max", "tau"))
        if "minmax" in self.experts:
            own += f", extrema={self.extrema!r}"
        return super().extra_repr() + own + ("" if self.eta_init is None else f", eta={self.eta_init:g}")


def _gradient_only(value: Tensor) -> Tensor:
    return value - value.detach()


def _in_use(batch: Tensor, population: Tensor, steps: Tensor, opening: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(steps > 0, population.to(batch.dtype), batch), opening.to(batch.dtype, copy=True)


# For torch.compile, an operator it cannot look into: otherwise inductor may recompute these for the backward pass from buffers
# that have moved by then. Eager needs no operator.
_opaque_in_use = torch.library.custom_op("dynavit::feature_state_in_use", _in_use, mutates_args=())


@_opaque_in_use.register_fake
def _in_use_shapes(batch: Tensor, population: Tensor, steps: Tensor, opening: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(batch), opening.new_empty((), dtype=batch.dtype)
