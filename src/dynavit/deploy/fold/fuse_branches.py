"""Structural re-parameterisation: parallel branches, each with a batch norm, as one operator. RepVGG, arXiv 2101.03697."""

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .sites import find_sites

Layer = nn.Conv2d | nn.Linear


@torch.no_grad()
def fuse_branches(branches: Sequence[tuple[Layer | None, nn.Module]]) -> Layer:
    """One convolution, or one linear layer, that computes the sum of parallel branches.

    Args:
        branches: pairs of an nn.Conv2d, an nn.Linear or None (the input itself), and the batch norm behind it. Convolutions
            have one stride and number of groups, and centred kernels: padding (k - 1) / 2, or all of them the same.
    """
    layers = [layer for layer, _ in branches if layer is not None]
    if not layers:
        raise ValueError(f"branches are fused into a convolution or a linear layer, and none of {len(branches)} has one")
    largest = max(layers, key=lambda layer: layer.weight.numel())
    weight = torch.zeros_like(largest.weight, dtype=torch.float64)
    bias = weight.new_zeros(len(weight))
    for layer, norm in branches:
        if norm.training:
            raise ValueError("branches are fused in evaluation mode: call .eval() first")
        sites = find_sites(norm)
        if len(sites) != 1 or not sites[0].whole or sites[0].scale is None or sites[0].shift is None:
            raise ValueError(f"{type(norm).__name__} is no affine map at evaluation, so its branch cannot be fused")
        scale, shift = sites[0].scale, sites[0].shift
        own = _identity_like(largest) if layer is None else _widened(layer, largest)
        before = None if layer is None else layer.bias
        weight += own * scale.reshape(-1, *[1] * (weight.dim() - 1))
        bias += shift + (0 if before is None else before.double() * scale)
    fused = copy.deepcopy(largest)
    fused.weight.copy_(weight)
    fused.bias = nn.Parameter(bias.to(fused.weight.dtype))
    return fused.eval()


def _widened(layer: Layer, largest: Layer) -> Tensor:
    """A kernel in the middle of zeros, as large as the largest one."""
    if type(layer) is type(largest) and isinstance(layer, nn.Linear) and layer.weight.shape == largest.weight.shape:
        return layer.weight.double()
    if isinstance(layer, nn.Conv2d) and isinstance(largest, nn.Conv2d):
        same = (layer.stride, layer.dilation, layer.groups) == (largest.stride, largest.dilation, largest.groups)
        spare = [big - small for big, small in zip(largest.kernel_size, layer.kernel_size, strict=True)]
        centred = all(
            2 * (big - small) == room for big, small, room in zip(_padding(largest), _padding(layer), spare, strict=True)
        )
        if same and centred and largest.padding_mode == layer.padding_mode == "zeros" and largest.dilation == (1, 1):
            return F.pad(layer.weight.double(), [spare[1] // 2] * 2 + [spare[0] // 2] * 2)
    raise ValueError(f"parallel branches must see the same places: {layer} does not fit beside {largest}")


def _identity_like(largest: Layer) -> Tensor:
    """The kernel that returns its input."""
    weight = torch.zeros_like(largest.weight, dtype=torch.float64)
    middle: list[int] = []
    groups = 1
    if isinstance(largest, nn.Conv2d):
        middle, groups = list(_padding(largest)), largest.groups
        if largest.stride != (1, 1) or tuple(2 * at + 1 for at in middle) != largest.kernel_size:
            raise ValueError(f"the input itself is no branch beside {largest}, which changes its size or is not centred")
    if len(weight) != weight.shape[1] * groups:
        raise ValueError(f"the input itself is no branch beside {largest}, which changes the number of channels")
    for out in range(len(weight)):
        weight[(out, out % weight.shape[1], *middle)] = 1.0
    return weight


def _padding(layer: nn.Conv2d) -> tuple[int, ...]:
    if isinstance(layer.padding, str):
        return tuple((k - 1) // 2 if layer.padding == "same" else 0 for k in layer.kernel_size)
    return tuple(layer.padding)
