"""Attention rollout: attention through all layers of a model. Abnar & Zuidema 2020, arXiv 2005.00928.

Every layer becomes a (t, t) matrix over the model's own tokens, prefix tokens first and then the grid, row by row. Half of each
token comes from attention and half from the residual connection, so the layers' (A + I) / 2 are multiplied.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

TIE = 1e-6


def whole_attention(weights: Tensor, queries: Tensor, keys: Tensor, grid: tuple[int, int], prefix: int) -> Tensor:
    """One layer's attention over all tokens, its heads averaged: (b, t, t) in float64, t = prefix + rows * cols, rows sum to 1.

    Windows are put in their places. Where one window covers the image, its leading tokens without a place are the prefix
    tokens; other tokens without a place are padding, and rows are renormalised without it. A key that stands for a region, as
    in PVT, divides its weight evenly among the tokens it is nearest to. Tokens that are no queries attend to themselves.

    One head alone: pass its slice, weights[:, :, h : h + 1].

    Args:
        weights: (b, w, h, q, k), rows sum to 1; w windows of an image.
        queries, keys: (w, q, 2), (w, k, 2), (row, col) on the grid, whose tokens have whole numbers; NaN: no place.
    """
    tokens = prefix + grid[0] * grid[1]
    at = _places(queries, grid, prefix)
    share = _shares(keys, grid, prefix)
    rows = torch.einsum("bwqk,wkt->bwqt", weights.mean(2, dtype=torch.float64), share)[:, at >= 0]
    mass = rows.sum(-1, keepdim=True)
    targets = at[at >= 0]
    itself = torch.eye(tokens, dtype=rows.dtype, device=rows.device)
    whole = itself.expand(len(weights), -1, -1).clone()
    whole[:, targets] = torch.where(mass > 0, rows / mass, itself[targets])
    return whole


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """Layers (b, t_l, t_l), first to last -> (b, t, t), t the largest t_l: where each token at the end comes from.

    A layer with fewer tokens stands before the class token enters: the tokens that it lacks, in front, stay as they are.
    All layers share one grid.
    """
    tokens = max(layer.shape[-1] for layer in layers)
    itself = torch.eye(tokens, dtype=torch.float64, device=layers[0].device)
    result = itself.expand(layers[0].shape[0], -1, -1)
    for layer in layers:
        lacking = tokens - layer.shape[-1]
        step = itself.expand_as(result).clone()
        step[:, lacking:, lacking:] = layer.double()
        result = (step + itself) / 2 @ result
    return result


def attended(attention: Tensor, prefix: int) -> Tensor:
    """(b, t, t) -> (b, rows * cols), sums to 1: attention of the class token, or without one of all tokens on average.

    All zero where the class token attends to no patch.
    """
    over_patches = attention[:, 0, prefix:] if prefix else attention.mean(1)
    total = over_patches.sum(-1, keepdim=True)
    return torch.where(total > 0, over_patches / total, 0.0)


def _places(queries: Tensor, grid: tuple[int, int], prefix: int) -> Tensor:
    """(w, q, 2) -> (w, q) index among all tokens; -1: padding."""
    row, col = queries.double().nan_to_num(0.0).round().long().unbind(-1)
    at = torch.where(queries.isnan().any(-1), -1, prefix + row * grid[1] + col)
    leading = _leading(queries, prefix)
    at[0, :leading] = torch.arange(leading, device=at.device)
    return at


def _shares(keys: Tensor, grid: tuple[int, int], prefix: int) -> Tensor:
    """(w, k, 2) -> (w, k, t): shares of all tokens in a key's weight. Rows sum to 1; padding has none."""
    rows, cols = (torch.arange(n, dtype=torch.float64, device=keys.device) for n in grid)
    patches = torch.cartesian_prod(rows, cols)
    lost = keys.isnan().any(-1)[..., None]
    distance = torch.cdist(keys.double().nan_to_num(0.0), patches.expand(len(keys), -1, -1)).masked_fill(lost, torch.inf)
    near = distance <= distance.amin(-1, keepdim=True) + TIE
    if len(keys) == 1:
        # It sees the whole image, so a key also stands for the patches that have no nearer key.
        near |= distance <= distance.amin(-2, keepdim=True) + TIE
    near &= ~lost
    leading = _leading(keys, prefix)
    of_prefix = torch.zeros(*keys.shape[:2], prefix, dtype=torch.bool, device=keys.device)
    of_prefix[0, torch.arange(leading), torch.arange(leading)] = True
    share = torch.cat([of_prefix, near], -1).double()
    return share / share.sum(-1, keepdim=True).clamp_min(1)


def _leading(places: Tensor, prefix: int) -> int:
    """(w, n, 2) -> the number of prefix tokens in front; 0 where there are several windows."""
    if len(places) > 1:
        return 0
    return int(places[0, :prefix].isnan().any(-1).long().cumprod(0).sum())
