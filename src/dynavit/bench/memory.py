"""Memory that a forward pass keeps for the backward pass, and the most that a process has used."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn


def saved_bytes(call: Callable[[], Tensor], module: nn.Module) -> int:
    """Bytes that autograd keeps while `call` runs, each storage once, without the parameters of `module`."""
    known = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = call()  # alive until counted: a freed address could be given out again
    del result
    return sum(kept.values())


def peak_megabytes(device: torch.device) -> float | None:
    """The most memory this process has held on the device, or None where nobody counts it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return peak_resident_megabytes() if device.type == "cpu" else None


def peak_resident_megabytes() -> float | None:
    """The most memory this process has held, or None on systems without /proc.

    Not `getrusage`: on Linux a child inherits its parent's maximum there.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), None)
