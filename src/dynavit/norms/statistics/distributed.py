"""Sums over all processes, differentiable by autograd.

Batch statistics belong to the whole batch, also when data parallelism splits it: every process contributes its sums and its
token counts, so unequal shares have the right weights. (`nn.SyncBatchNorm` does this on GPUs only.)
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def sum_over_processes(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Each tensor summed over the processes of the default group, in one collective; the tensors themselves if alone.

    All tensors share a dtype. A loss of any process that depends on the sum sends its gradient to the addends of all.
    """
    if process_count() == 1:
        return tensors
    packed = _AllReduceSum.apply(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    parts = packed.split([tensor.numel() for tensor in tensors])
    return tuple(part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True))


@torch.no_grad()
def max_over_processes(tensor: Tensor) -> Tensor:
    """The largest values over the processes of the default group, without gradients; the tensor itself if alone."""
    if process_count() == 1:
        return tensor
    largest = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest


def process_count() -> int:
    """The number of processes that share the batch."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def whole(parameter: Tensor) -> Tensor:
    """All of a parameter that may be sharded (FSDP), detached. Every process has to call this."""
    return parameter.detach().full_tensor() if _is_sharded(parameter) else parameter.detach()  # type: ignore[attr-defined]


@torch.no_grad()
def write(parameter: Tensor, value: Tensor) -> None:
    """Put a whole value, which every process has, into a parameter that may be sharded."""
    if _is_sharded(parameter):
        from torch.distributed.tensor import distribute_tensor

        mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
        value = distribute_tensor(value, mesh, placements, src_data_rank=None)
    parameter.copy_(value)


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # instead of isinstance: torch's class for it is slow to import


class _AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _all_reduced(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # The sum S of the x_r of all ranks enters every rank's loss: d(sum of losses)/dx_r = sum over ranks of dL/dS.
        # The same sum again, as a function that can itself be differentiated.
        return _AllReduceSum.apply(grad)


def _all_reduced(x: Tensor) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total
