"""Magnitudes of tokens, head by head, and their variation (Fig. 1 of DTN, arXiv 2112.02624)."""

import torch
from torch import Tensor


def token_magnitudes(tokens: Tensor, heads: int) -> Tensor:
    """(b, t, c) -> (b, h, t) in float64: the Euclidean length of each head's channels of each token."""
    return torch.linalg.vector_norm(tokens.double().unflatten(-1, (heads, -1)), dim=-1).transpose(1, 2)


def coefficient_of_variation(values: Tensor) -> Tensor:
    """(..., t) -> (...) in float64: the standard deviation (divisor t) over the mean; NaN where all values are 0."""
    values = values.double()
    return values.std(-1, correction=0) / values.mean(-1)
