"""The device to compute on: the one asked for, or the best there is."""

import torch


def best_device() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def usable_device(device: str) -> torch.device:
    """The device of this name, if a tensor can stand on it here."""
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, RuntimeError, NotImplementedError) as error:  # torch raises all of them
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"the device {device!r} cannot be used here ({reason}); leave it out to take the best there is"
        ) from error
