"""The contract of normalisers: one signature, one call, one set of promises and facts.

Axes used throughout the room:  b samples, t tokens, c channels, h heads, d = c / h channels of a head.

    Norm(dim, *, heads=1, eps=1e-5, affine=True, device=None, dtype=None, ...own options...)
    norm(x, grid=None, mask=None)     x is (b, t, c) or (b, rows, cols, c); the result has x's shape and dtype

A subclass writes `normalise` (tokens in, normalised tokens out, before the affine map). If it has parameters of its own, it
also writes `reset_parameters` and calls it at the end of its `__init__`. This class brings the tokens into one form, keeps
statistics in at least float32, and keeps padding out.

Optional methods are found by name. `affine_map() -> (scale, shift)`, both (c), says that the norm is this map at evaluation, so
that it can be folded away; the training loop calls `set_progress(step, total)`, `commit_statistics()` and `scalars()`.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

Grid = tuple[int, ...]

_WIDE = (torch.float32, torch.float64)  # precise enough for statistics


class Norm(nn.Module):
    """Base of all normalisers: y = weight * normalise(x) + bias.

    The attributes are facts about the class. By them models, ours and others', decide where a norm can stand and what it has to
    be told. The defaults are careful: a norm that declares nothing is refused where it might be wrong.

    Attributes:
        has_bias: with `affine` there is a bias beside the weight.
        needs_grid: it uses positions, so inside a model every call brings the grid. Only such a norm may have the option
            `num_prefix_tokens`: tokens in front that lie outside the grid.
        dimensions: of the grids it takes, if it needs one: 2 for images, 1 for sequences. A norm for both is told through its
            option `ndim`, if it has one.
        mixes_tokens: the result for a token depends on other tokens. False admits the norm to causal models, windows, and
            queries and keys of each head.
        uses_heads: the result depends on `heads`, so they have to be those of the attention beside it.
        starts_as: the norm that this one can equal exactly, "ln" or "rms". An instance whose options forbid it sets None.
        mixing_parameters: names of the parameters by which it departs from that norm.
    """

    has_bias = True
    needs_grid: bool = False
    dimensions: tuple[int, ...] = (2,)
    mixes_tokens: bool = True
    uses_heads: bool = True
    starts_as: Literal["ln", "rms"] | None = None
    mixing_parameters: tuple[str, ...] = ()

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 1,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dim < 1 or heads < 1 or dim % heads:
            fits = [n for n in range(1, dim + 1) if dim % n == 0]
            raise ValueError(
                f"{type(self).__name__}: {dim} channels cannot be split into {heads} heads; heads that divide {dim}: {fits}"
            )
        if not 0 <= eps < math.inf:
            raise ValueError(f"{type(self).__name__}: eps is added to a variance, at least 0 and finite; got {eps}")
        self.dim, self.heads, self.eps, self.affine = dim, heads, eps, affine
        self.weight = nn.Parameter(torch.empty(dim, device=device, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.empty(dim, device=device, dtype=dtype)) if affine and self.has_bias else None
        Norm.reset_parameters(self)  # not the subclass's: parameters of its own do not exist yet

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        """Normalise tokens.

        Args:
            x: (b, t, c) tokens, row-major on their grid, or (b, rows, cols, c).
            grid: the tokens' grid, needed only by norms that know positions.
            mask: (b, t) or (b, rows, cols), True = a real token. Padding influences nothing; its output is 0.
        """
        if mask is None and x.dtype in _WIDE and x.dim() == 3 and x.shape[2] == self.dim:  # nothing to convert or to refuse
            y = self.transform(x, grid, None)
            return y if y.dtype == x.dtype else y.to(x.dtype)
        tokens, grid = self._as_tokens(x, grid)
        # Calls that would change nothing are left out: each takes as long as a small norm's arithmetic.
        wide = tokens if x.dtype in _WIDE else tokens.to(statistics_dtype(x.dtype))
        if mask is None:
            y = self.transform(wide, grid, None)
        else:
            y = self.transform_masked(wide, grid, self._as_token_mask(mask, tokens))
        if y.dtype != x.dtype:
            y = y.to(x.dtype)
        return y if x.dim() == 3 else y.reshape(x.shape)

    def transform(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        """`normalise` and the affine map; a norm with a kernel for both writes this one instead."""
        return self.apply_affine(self.normalise(x, grid, mask))

    def transform_masked(self, x: Tensor, grid: Grid | None, mask: Tensor) -> Tensor:
        """`transform` of tokens whose padding, mask (b, t) False, may hold garbage; the result is 0 there."""
        # `where`, not a product: 0 * NaN is NaN, and garbage in padding must reach neither outputs nor gradients.
        x = torch.where(mask[..., None], x, 0.0)
        return torch.where(mask[..., None], self.transform(x, grid, mask), 0.0)

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        """(b, t, c) in at least float32 -> normalised (b, t, c). Where `mask` is False, x is 0 and the result is ignored."""
        raise NotImplementedError

    def apply_affine(self, y: Tensor) -> Tensor:
        weight, bias = self.gain_and_bias(y.dtype)
        if weight is not None:
            y = y * weight
        return y if bias is None else y + bias

    def gain_and_bias(self, dtype: torch.dtype, share: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
        """`weight` and `bias` in the dtype of a calculation; times a share (), a norm without them has that as its gain."""
        weight, bias = (None if part is None else part.to(dtype) for part in (self.weight, self.bias))
        if share is None:
            return weight, bias
        return share if weight is None else weight * share, None if bias is None else bias * share

    def start_at(self, share: float) -> None:
        """Give the norm that this one `starts_as` a share of the mixture. In place, under no_grad.

        1 is that norm exactly, and still has to have a slope: a sigmoid does not, a parameter that is the share does, see
        `linear_share`.
        """

    def inherited(self, old: str) -> dict[str, str]:
        """{own parameter: parameter of the replaced norm that it takes over}.

        Args:
            old: kind of the replaced norm: "ln", "rms", or the name of its class.
        """
        return {"weight": "weight", "bias": "bias"}

    def no_weight_decay_parameters(self) -> set[str]:
        """Names of this layer's parameters that an optimiser should not decay: all of them."""
        return {name for name, _ in self.named_parameters(recurse=False)}

    def extra_repr(self) -> str:
        return f"{self.dim}, heads={self.heads}, eps={self.eps:g}" + ("" if self.affine else ", affine=False")

    def __prepare_scriptable__(self) -> "Norm":
        # torch.jit.script asks this of every module in a model before it reads any code.
        raise NotImplementedError(
            f"torch.jit.script cannot read {type(self).__name__}: use torch.compile, or torch.export.export for a model to ship"
        )

    def _as_tokens(self, x: Tensor, grid: Grid | None) -> tuple[Tensor, Grid | None]:
        name = type(self).__name__
        if x.dim() not in (3, 4):
            pooled = (
                ". Single vectors are no tokens: a model's norm_layer= also stands behind its pooling; build it with its own "
                "norms and replace those of tokens by dynavit.swap_norms(model, ...)"
            )
            raise ValueError(
                f"{name}: got an input of shape {tuple(x.shape)}; "
                f"it takes (batch, tokens, channels) or (batch, rows, cols, channels){pooled if x.dim() == 2 else ''}"
            )
        if not x.is_floating_point():
            raise ValueError(f"{name}: got numbers of type {x.dtype}; a norm takes floating-point tokens")
        if x.shape[-1] != self.dim:
            raise ValueError(
                f"{name}: got {x.shape[-1]} channels (input {tuple(x.shape)}), was built for {self.dim}, channels last"
            )
        if x.dim() == 3:
            return x, grid
        own = (x.shape[1], x.shape[2])
        if grid is not None and tuple(grid) != own:
            raise ValueError(f"{name}: the input {tuple(x.shape)} lies on a {own} grid, but grid={tuple(grid)} was given")
        return x.flatten(1, 2), own

    def _as_token_mask(self, mask: Tensor, tokens: Tensor) -> Tensor:
        if mask.dtype != torch.bool:
            raise ValueError(f"{type(self).__name__}: the mask must be boolean, True = a real token; got {mask.dtype}")
        if mask.shape[0] != tokens.shape[0] or mask.numel() != tokens.shape[0] * tokens.shape[1]:
            raise ValueError(
                f"{type(self).__name__}: got a mask of shape {tuple(mask.shape)} "
                f"for {tokens.shape[0]} samples of {tokens.shape[1]} tokens"
            )
        return mask.reshape(tokens.shape[:2])


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """Statistics are never kept in half precision."""
    return torch.promote_types(dtype, torch.float32)
