"""Tensors that may be spread over processes, to and from whole ones.

Checkpoints hold whole tensors on the CPU, whatever the run was: so one process, ddp and fsdp can continue each other.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def gathered(tensor: Tensor) -> Tensor:
    """The whole tensor on the CPU, detached. All processes have to ask for it."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().cpu()


@torch.no_grad()
def assign(tensor: Tensor, whole: Tensor) -> None:
    """Write `whole`, which every process has, into a tensor that may be spread."""
    if isinstance(tensor, DTensor):
        whole = whole.to(tensor.device)
        whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
    tensor.copy_(whole)


def local(tensor: Tensor) -> Tensor:
    """This process's part, sharing memory: enough for what is done number by number."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_number(value: Tensor) -> Tensor:
    """A scalar computed from spread tensors as a plain one."""
    return value.full_tensor() if isinstance(value, DTensor) else value
