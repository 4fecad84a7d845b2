"""The device that is measured: waiting for it, and its name."""

import torch

CPU = torch.device("cpu")


def wait_for(device: torch.device) -> None:
    """Until everything asked of the device is done: calls return before that, on all devices but CPUs."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def device_name(device: torch.device) -> str:
    return f"cuda, {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)
