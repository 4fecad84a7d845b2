"""From the tokens of a coarse grid to those of a finer one: nearest neighbours to a multiple, then adaptive average pooling.

Both are linear and separable, so together they are one fixed matrix per axis, U (new, old), with at most two weights other than
0 in a row. With the class token, which is passed on, tokens x and matrices c over pairs of tokens become

    E x,   E c E^T,   E = blockdiag(1, U_rows kron U_cols)

Axes:  b anything in front, n old tokens, m new tokens, c channels, k weights of a new token.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..conv_tokens import Grid

FEW_TOKENS = 64  # up to here a dense product is at least as fast as picking rows
AT_HAND = 2**16  # numbers that stay in a core's cache, where transposing them costs less than a dense product


def axis_weights(old: int, new: int) -> list[dict[int, Fraction]]:
    """U: for each of `new` cells the old ones it averages, with their weights.

    >>> [{at: str(weight) for at, weight in row.items()} for row in axis_weights(2, 3)]
    [{0: '1'}, {0: '1/2', 1: '1/2'}, {1: '1'}]
    """
    factor = math.ceil(new / old)
    long = factor * old  # the axis after nearest neighbours
    rows = []
    for at in range(new):
        first, last = long * at // new, -(-long * (at + 1) // new)
        seen = Counter(cell // factor for cell in range(first, last))
        rows.append({cell: Fraction(count, last - first) for cell, count in seen.items()})
    return rows


@dataclass(frozen=True)
class TokenMap:
    """E in one precision: as a matrix (m, n), and as the old tokens (m, k) and weights (m, k) of each new one.

    `patches` is the map that gives the class token 0 instead of passing it on.
    """

    matrix: Tensor
    source: Tensor
    weights: Tensor
    patches: "TokenMap | None" = None
    repeated: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # tables of several samples in a row

    def rows(self, x: Tensor) -> Tensor:
        """E x: (*b, n, c) -> (*b, m, c)."""
        m, n = self.matrix.shape
        if not self._picks(x):
            return self.matrix @ x
        table = x.reshape(-1, x.shape[-1])  # (b * n, c)
        source, weights = self._tables_for(len(table) // n)
        y = F.embedding_bag(source, table, mode="sum", per_sample_weights=weights)  # a sum of k weighted rows, not of all n
        return y.view(*x.shape[:-2], m, -1)

    def _tables_for(self, samples: int) -> tuple[Tensor, Tensor]:
        """(b * m, k) each. Every block of an exit asks for the same."""
        if samples not in self.repeated:
            n = self.matrix.shape[1]
            start = torch.arange(0, samples * n, n, device=self.source.device)[:, None, None]
            self.repeated[samples] = (self.source + start).flatten(0, 1), self.weights.repeat(samples, 1)
        return self.repeated[samples]

    def pairs(self, c: Tensor) -> Tensor:
        """E c E^T: (*b, n, n) -> (*b, m, m)."""
        # A counter of operations sees the product whatever the batch, so that costs do not depend on it.
        if self._picks(c) and c.numel() <= AT_HAND and not torch._C._len_torch_dispatch_stack():
            return self.rows(self.rows(c.mT).mT)
        return self.rows(F.linear(c, self.matrix))

    def _picks(self, x: Tensor) -> bool:
        """Whether rows are picked and added up, k for each new token, instead of multiplied."""
        return self.matrix.shape[1] > FEW_TOKENS and x.device.type == "cpu" and not torch.compiler.is_compiling()


class Upsample(nn.Module):
    """The map from one grid to another, kept as exact fractions so that it is right in every precision."""

    source: Tensor
    numerator: Tensor
    denominator: Tensor

    def __init__(self, old: Grid, new: Grid) -> None:
        super().__init__()
        self.old, self.new = old, new
        for name, rows in zip(("source", "numerator", "denominator"), self._tables(), strict=True):
            self.register_buffer(name, torch.tensor(rows), persistent=False)

    def reset_parameters(self) -> None:
        """Fill the buffers of a model that was built without memory."""
        for buffer, rows in zip((self.source, self.numerator, self.denominator), self._tables(), strict=True):
            buffer.copy_(torch.tensor(rows))

    def forward(self, like: Tensor) -> TokenMap:
        """The map in the precision of `like`."""
        weights = self.numerator.to(like.dtype) / self.denominator.to(like.dtype)
        zeros = weights.new_zeros(len(weights), 1 + math.prod(self.old))
        matrix = zeros.scatter_add(1, self.source, weights)
        of_patches = [F.pad(part[1:], (0, 0, 1, 0)) for part in (matrix, weights)]
        patches = TokenMap(of_patches[0], self.source, of_patches[1])
        return TokenMap(matrix, self.source, weights, patches)

    def _tables(self) -> tuple[list[list[int]], ...]:
        """Old tokens of each new one, and their weights' numerators and denominators; filled up with weights 0."""
        rows, cols = (axis_weights(old, new) for old, new in zip(self.old, self.new, strict=True))
        tokens = [{0: Fraction(1)}]  # the class token
        tokens += [{1 + r * self.old[1] + c: row[r] * col[c] for r in row for c in col} for row in rows for col in cols]
        most = max(map(len, tokens))
        filled = [[*token.items(), *[(0, Fraction(0))] * (most - len(token))] for token in tokens]
        return (
            [[at for at, _ in token] for token in filled],
            [[weight.numerator for _, weight in token] for token in filled],
            [[weight.denominator for _, weight in token] for token in filled],
        )

    def extra_repr(self) -> str:
        return f"{self.old[0]}x{self.old[1]} -> {self.new[0]}x{self.new[1]}"
