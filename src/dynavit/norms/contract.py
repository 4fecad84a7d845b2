"""The base of all normalisers: one signature, one call, one set of promises.

Axes used throughout the room:  b samples, t tokens, c channels, h heads, d = c / h channels of a head.

    Norm(dim, *, heads=1, eps=1e-5, affine=True, device=None, dtype=None, ...own options...)
    norm(x, grid=None, mask=None)     x is (b, t, c) or (b, rows, cols, c); the result has x's shape and dtype

A subclass writes `normalise` (tokens in, normalised tokens out, before the affine map) and its own `reset_parameters`;
this class brings the tokens into one form, keeps statistics in at least float32, and keeps padding out.
"""

import torch
from torch import Tensor, nn

Grid = tuple[int, ...]


class Norm(nn.Module):
    """Base of all normalisers: y = weight * normalise(x) + bias."""

    has_bias = True

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
        self.dim, self.heads, self.eps, self.affine = dim, heads, eps, affine
        self.weight = nn.Parameter(torch.empty(dim, device=device, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.empty(dim, device=device, dtype=dtype)) if affine and self.has_bias else None

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
        tokens, grid = self._as_tokens(x, grid)
        wide = tokens.to(statistics_dtype(x.dtype))
        if mask is None:
            y = self.transform(wide, grid, None)
        else:
            mask = self._as_token_mask(mask, tokens)
            # `where`, not a product: 0 * NaN is NaN, and garbage in padding must reach neither outputs nor gradients.
            wide = torch.where(mask[..., None], wide, 0.0)
            y = torch.where(mask[..., None], self.transform(wide, grid, mask), 0.0)
        return y.to(x.dtype).reshape(x.shape)

    def transform(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        """`normalise` and the affine map; a norm with a kernel for both writes this one instead."""
        return self.apply_affine(self.normalise(x, grid, mask))

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        """(b, t, c) in at least float32 -> normalised (b, t, c). Where `mask` is False, x is 0 and the result is ignored."""
        raise NotImplementedError

    def apply_affine(self, y: Tensor) -> Tensor:
        if self.weight is not None:
            y = y * self.weight.to(y.dtype)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y

    def no_weight_decay_parameters(self) -> set[str]:
        """Names of this layer's parameters that an optimiser should not decay: all of them."""
        return {name for name, _ in self.named_parameters(recurse=False)}

    def extra_repr(self) -> str:
        return f"{self.dim}, heads={self.heads}, eps={self.eps:g}" + ("" if self.affine else ", affine=False")

    def _as_tokens(self, x: Tensor, grid: Grid | None) -> tuple[Tensor, Grid | None]:
        name = type(self).__name__
        if x.dim() not in (3, 4):
            raise ValueError(
                f"{name}: got an input of shape {tuple(x.shape)}; "
                "it takes (batch, tokens, channels) or (batch, rows, cols, channels)"
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
