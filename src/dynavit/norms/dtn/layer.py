"""Dynamic Token Normalization. Shao et al., ICLR 2022, arXiv 2112.02624."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..contract import Grid, Norm
from ..factory import register_norm
from ..linear_share import LinearShares, linear_share, project_share
from .direct import can_be_direct, normalise_directly
from .extents import top_left
from .init import local_position
from .kernels import grid_kernels, offset_kernel
from .math import Layout, Operands
from .native.kernel import FIXED, LOGIT, SHARE, Mixing, Parameters, has_native_form
from .op import normalise_tokens
from .token_grid import resolve_grid

# 1-D sequences up to this length use the whole (t, t) kernel; longer ones a band.
DENSE_LIMIT = 256


@register_norm("dtn")
class DynamicTokenNorm(LinearShares, Norm):
    r"""Normalises each token by moments mixed from its own channels and the tokens around it; each head learns its mixture.

    For head $h$, with $x^h$ its channels (Eqns 4-6 of the paper; the affine map is Eqn 1):

    $$ \mu^h = \lambda_\mu^h \mu_{ln} + (1 - \lambda_\mu^h) P^h x^h $$
    $$ (\sigma^h)^2 = \lambda_\sigma^h \sigma_{ln}^2 + (1 - \lambda_\sigma^h) [P^h (x^h)^2 - (P^h x^h)^2] $$
    $$ P^h_{ij} = \mathrm{softmax}_j (a_0 |j - i|^2 + a_1 dx + a_2 dy), \qquad (dx, dy) = j - i $$

    $\mu_{ln}, \sigma_{ln}^2$ are LayerNorm's, over all channels of the token. $\lambda = 1$ is LayerNorm; $\lambda = 0$ with
    uniform P is InstanceNorm. P is the product of a kernel over rows and one over columns, so it costs T (rows + cols)
    multiplications per channel instead of $T^2$, and is never built.

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight`, `bias` (c); `mean_logit`, `var_logit` (h), sigmoid of which is
    $\lambda$, started at 0.5; `position` (h, 3) = [a_0, a_1, a_2], in 1-D (h, 2). A layer with linear shares, or one that was
    started as LayerNorm exactly (`start_at(1)`), has `mean_share`, `var_share` (h) instead of the logits, which are $\lambda$
    itself: see `linear_share`.

    Without `grid` a lone layer takes a square number of tokens (1-D: any). Any rectangular grid may be given, a new one each
    call. With `mask`, P(m x) / P(m).

    Args:
        num_prefix_tokens: tokens in front (class, registers) that lie outside the grid: LayerNorm for them.
        ndim: 2 for images, 1 for sequences (`grid=(t,)`).
        init: "local" starts each head at its own neighbour (Eqn 7); "trunc_normal" starts P near uniform.
        offsets: place of a window of even side in Eqn 7, see `head_offsets`.
        average: P "learned", "uniform" (1/T), or a "window" of equal weights, |dx|, |dy| <= radius. The last two have no
            `position`.
        radius: weights beyond this offset are 0. None: no limit in 2-D, 16 for banded 1-D kernels, 1 for "window".
        kernel: 1-D only: the "dense" (t, t) kernel, a "band" of `radius`, or "auto": dense up to 256 tokens.
        pool: 2-D only: the inter-token statistics are those of cells of pool x pool tokens, means of x and x^2 in each, so that
            the variance inside a cell counts. Offsets and `radius` are in cells. A cell cut short by the end of the grid or
            by a mask weighs its share of real tokens.
        fixed_mean_lambda, fixed_var_lambda: a number in [0, 1] that replaces the learned lambda of the mean or variance.
        only_var: the mean is LayerNorm's, only the variance is mixed; the same as fixed_mean_lambda=1.
        shares: how lambda is learned: the sigmoid of a "logit", or "linear", a number kept in [0, 1] that can be LayerNorm
            exactly, which is where a training from weights with LayerNorm then begins.
        backend: "auto" takes the fastest way; "torch" takes plain operations, which also have second derivatives.
    """

    needs_grid = True
    dimensions: tuple[int, ...] = (1, 2)
    starts_as: Literal["ln"] | None = "ln"
    mixing_parameters: tuple[str, ...] = ("mean_logit", "var_logit", "position")
    linear = "share"

    def __init__(
        self,
        dim: int,
        *,
        num_prefix_tokens: int = 0,
        ndim: Literal[1, 2] = 2,
        init: Literal["local", "trunc_normal"] = "local",
        offsets: Literal["centred", "integer"] = "centred",
        average: Literal["learned", "uniform", "window"] = "learned",
        radius: int | None = None,
        kernel: Literal["auto", "dense", "band"] = "auto",
        pool: int = 1,
        fixed_mean_lambda: float | None = None,
        fixed_var_lambda: float | None = None,
        only_var: bool = False,
        shares: Literal["logit", "linear"] = "logit",
        backend: Literal["auto", "torch"] = "auto",
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        self._check("ndim", ndim, (1, 2))
        self._check("init", init, ("local", "trunc_normal"))
        self._check("offsets", offsets, ("centred", "integer"))
        self._check("average", average, ("learned", "uniform", "window"))
        self._check("kernel", kernel, ("auto", "dense", "band"))
        self._check("backend", backend, ("auto", "torch"))
        if only_var:
            if fixed_mean_lambda not in (None, 1, 1.0):
                raise ValueError(f"DynamicTokenNorm: only_var means fixed_mean_lambda=1; got {fixed_mean_lambda} too")
            fixed_mean_lambda = 1.0
        for name, value in (("fixed_mean_lambda", fixed_mean_lambda), ("fixed_var_lambda", fixed_var_lambda)):
            if value is not None and not 0 <= value <= 1:
                raise ValueError(
                    f"DynamicTokenNorm: {name} is a weight between 0 (inter-token) and 1 (intra-token); got {value}"
                )
        if num_prefix_tokens < 0:
            raise ValueError(f"{type(self).__name__}: num_prefix_tokens counts tokens, at least 0; got {num_prefix_tokens}")
        if radius is not None and radius < 1:
            raise ValueError(f"DynamicTokenNorm: radius counts tokens on each side, at least 1; got {radius}")
        if pool < 1 or (pool > 1 and ndim == 1):
            raise ValueError(
                f"{type(self).__name__}: pool is the side of a cell of tokens, at least 1, and 1 for sequences; "
                f"got {pool} with ndim={ndim}"
            )
        self.num_prefix_tokens, self.ndim, self.init, self.offsets = num_prefix_tokens, ndim, init, offsets
        self.average, self.kernel, self.pool, self.backend = average, kernel, pool, backend
        self.radius = radius if radius is not None else 1 if average == "window" else 16 if ndim == 1 else None
        self.fixed_mean_lambda, self.fixed_var_lambda = fixed_mean_lambda, fixed_var_lambda
        if any(fixed not in (None, 1) for fixed in (fixed_mean_lambda, fixed_var_lambda)):
            self.starts_as = None

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=shared.get("device"), dtype=shared.get("dtype")))

        self.mean_logit = parameter(self.heads) if fixed_mean_lambda is None else None
        self.var_logit = parameter(self.heads) if fixed_var_lambda is None else None
        self.mean_share: nn.Parameter | None = None
        self.var_share: nn.Parameter | None = None
        self.position = parameter(self.heads, 1 + ndim) if average == "learned" else None
        self.choose_shares(shares)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.start_at(0.5)
        if self.position is not None:
            self.reset_position(self.position)

    def reset_position(self, position: nn.Parameter) -> None:
        with torch.no_grad():
            if self.init == "local":
                position.copy_(local_position(self.heads, self.ndim, self.offsets))
                return
            nn.init.trunc_normal_(position, std=0.02)
            if self.ndim == 1:
                # On long axes 0.02 d^2 is no longer small: P would sit on the farthest token. Scale as if the longest
                # dense sequence were the paper's 14 tokens wide.
                scale = 14 / DENSE_LIMIT
                position.mul_(position.new_tensor([scale**2, scale]))

    def start_at(self, share: float) -> None:
        """Set lambda, the share of LayerNorm's moments, in every head; 0 and 1 make it a linear share, see the class."""
        if share in (0, 1):
            self.make_shares_linear()
        for logit in (self.mean_logit, self.var_logit):
            if logit is not None:
                logit.fill_(math.log(share / (1 - share)))
        for linear in (self.mean_share, self.var_share):
            if linear is not None:
                linear.fill_(share)

    def linear_shares(self, logit: Tensor) -> Tensor:
        return logit.sigmoid()

    def transform(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        layout = self.layout(x.shape[1], grid)
        if mask is None and (y := self._direct(x, layout, None)) is not None:
            return y
        lam_mean, lam_var = self.mixing_weights(x)
        position = x.new_zeros(self.heads, 1 + self.ndim) if self.average == "window" else self.position
        operands = Operands(x, self.weight, self.bias, lam_mean, lam_var, position)
        return normalise_tokens(operands, layout, mask, self.backend)

    def transform_masked(self, x: Tensor, grid: Grid | None, mask: Tensor) -> Tensor:
        layout = self.layout(x.shape[1], grid)
        # C never reads padding behind a rectangle of real tokens, so it need not be cleared, and writes zeros there.
        extents = top_left(mask, layout)
        if extents is not None and (y := self._direct(x, layout, extents)) is not None:
            return y
        return super().transform_masked(x, grid, mask)

    def _direct(self, x: Tensor, layout: Layout, extents: Tensor | None) -> Tensor | None:
        """The result of the C kernel, if this call may go there without the dispatcher."""
        if self.backend != "auto" or self.average == "uniform" or not has_native_form(layout):
            return None
        parameters, mixing = self._as_they_are()
        return normalise_directly(x, parameters, mixing, layout, extents) if can_be_direct(x, parameters) else None

    def _as_they_are(self) -> tuple[Parameters, Mixing]:
        """The layer's own numbers for the C kernel, and how they are meant."""
        mean, mean_kind = self._lambda("mean_logit", "mean_share")
        var, var_kind = self._lambda("var_logit", "var_share")
        mixing = Mixing(self.heads, mean_kind, var_kind, self.fixed_mean_lambda or 0.0, self.fixed_var_lambda or 0.0)
        return Parameters(self._own("weight"), self._own("bias"), mean, var, self._own("position")), mixing

    def _lambda(self, logit: str, share: str) -> tuple[Tensor | None, int]:
        """What stands for one lambda in this layer, and how it is meant."""
        number = self._own(logit)
        if number is not None:
            return number, LOGIT
        number = self._own(share)
        if number is None:
            return None, FIXED
        project_share(number, self.training)
        return number, SHARE

    def _own(self, name: str) -> Tensor | None:
        """`getattr`, which takes ten times as long for a parameter. One that is computed (`parametrize`) is not in the dict."""
        number = self._parameters.get(name)
        return getattr(self, name) if number is None else number

    def mixing_weights(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """(h,), (h,): the weight of the intra-token mean and variance in `like`'s dtype."""

        def weight(logit: Tensor | None, share: Tensor | None, fixed: float | None) -> Tensor:
            if share is not None:
                return linear_share(share, like.dtype, self.training)
            return like.new_full((self.heads,), fixed or 0.0) if logit is None else logit.to(like.dtype).sigmoid()

        mean = weight(self.mean_logit, self.mean_share, self.fixed_mean_lambda)
        return mean, weight(self.var_logit, self.var_share, self.fixed_var_lambda)

    def layout(self, tokens: int, grid: Grid | None) -> Layout:
        """The layout of one call, from its token count and the given grid."""
        grid = resolve_grid(type(self).__name__, tokens, self.num_prefix_tokens, self.ndim, grid)
        radius, banded = self.radius, False
        if self.ndim == 1:
            length = grid[0]
            whole = self.average == "learned" and (self.kernel == "dense" or (self.kernel == "auto" and length <= DENSE_LIMIT))
            radius = None if whole else radius
            banded = radius is not None and length >= 2 * radius
        return Layout(grid, self.num_prefix_tokens, radius, banded, self.pool, eps=self.eps)

    def positional_weights(self, grid: Grid, token: int) -> Tensor:
        """P of one token, on the grid: (h, *grid), float64. The token is counted row-major, without prefix tokens."""
        layout = self.layout(math.prod(grid) + self.num_prefix_tokens, grid)
        return self._weights_of(token, layout.grid, layout.radius)

    def _weights_of(self, token: int, grid: Grid, radius: int | None) -> Tensor:
        if self.average == "uniform":
            return torch.full((self.heads, *grid), 1 / math.prod(grid), dtype=torch.float64)
        position = self.position.detach() if self.position is not None else torch.zeros(self.heads, 1 + self.ndim)
        places = (token,) if self.ndim == 1 else divmod(token, grid[1])
        kernels = grid_kernels(position, tuple(-(-n // self.pool) for n in grid), radius)
        # All tokens of a cell have the same weight.
        axes = [
            p[:, i // self.pool].repeat_interleave(self.pool, 1)[:, :n] for p, i, n in zip(kernels, places, grid, strict=True)
        ]
        axes = [weights / weights.sum(1, keepdim=True) for weights in axes]
        return axes[0] if self.ndim == 1 else axes[0][:, :, None] * axes[1][:, None, :]

    @torch.no_grad()
    def scalars(self) -> dict[str, float]:
        """Learned numbers of each head, for logs."""
        values: dict[str, float] = {}
        mean, var = self.mixing_weights(torch.empty(0, dtype=torch.float64))
        named = (("lambda_mean", mean, self.fixed_mean_lambda), ("lambda_var", var, self.fixed_var_lambda))
        for name, lam, fixed in named:
            if fixed is None:
                values |= {f"{name}.{h}": share for h, share in enumerate(lam.tolist())}
        if self.position is not None:
            for h, (a0, *slopes) in enumerate(self.position.detach().double().tolist()):
                values[f"a0.{h}"] = a0
                if a0 < 0:  # otherwise P has no inner maximum
                    values |= {f"centre_{axis}.{h}": -slope / (2 * a0) for axis, slope in zip("xy", slopes, strict=False)}
            if self.ndim == 1 and self.radius is not None:
                values |= {f"tail_mass.{h}": mass for h, mass in enumerate(self._tail_mass(self.radius))}
        return values

    def _tail_mass(self, radius: int) -> list[float]:
        """The share of each head's weights that a band of `radius` cuts off a kernel four times as wide."""
        assert self.position is not None
        offset = torch.arange(-4 * radius, 4 * radius + 1, dtype=torch.float64, device=self.position.device)[None]
        weights = offset_kernel(self.position[:, 0].detach(), self.position[:, 1].detach(), offset, offset == offset)[:, 0]
        return [float(mass) for mass in weights[:, (offset.abs() > radius)[0]].sum(-1)]

    def _as_tokens(self, x: Tensor, grid: Grid | None) -> tuple[Tensor, Grid | None]:
        if x.dim() == 4 and (self.ndim == 1 or self.num_prefix_tokens):
            reason = "is one-dimensional" if self.ndim == 1 else f"expects {self.num_prefix_tokens} prefix tokens"
            raise ValueError(
                f"{type(self).__name__}: got {tuple(x.shape)}, a grid of tokens, but the layer {reason}; "
                "pass (batch, tokens, channels)"
            )
        return super()._as_tokens(x, grid)

    def _check(self, option: str, value: Any, allowed: tuple[Any, ...]) -> None:
        if value not in allowed:
            raise ValueError(f"{type(self).__name__}: {option} is one of {', '.join(map(repr, allowed))}; got {value!r}")

    def extra_repr(self) -> str:
        shown = {"num_prefix_tokens": 0, "ndim": 2, "init": "local", "average": "learned", "pool": 1, "backend": "auto"}
        own = "".join(f", {name}={getattr(self, name)!r}" for name, default in shown.items() if getattr(self, name) != default)
        for name in ("fixed_mean_lambda", "fixed_var_lambda"):
            if getattr(self, name) is not None:
                own += f", {name}={getattr(self, name):g}"
        return super().extra_repr() + own
