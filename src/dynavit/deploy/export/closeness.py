"""Compare an exported model with the model: both with a run in float64."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .program import frozen_copy

FLOOR = 1e-5  # relative to the largest logit
TIMES_OWN = 10  # so many times the model's own float32 error is allowed


@dataclass(frozen=True)
class Reference:
    """The outputs of a model for some images in float64, and how far its own float32 outputs are from them."""

    outputs: tuple[NDArray[np.float64], ...]  # (b, classes) of each exit
    own_error: float

    @classmethod
    def of(cls, model: nn.Module, images: Tensor) -> "Reference":
        exact = _outputs(frozen_copy(model, torch.float64), images.double())
        own = _outputs(frozen_copy(model), images.float())
        if not all(np.isfinite(each).all() for each in (*exact, *own)):
            raise ValueError(
                "the model's own logits are not all finite, so an export cannot be compared with them; look for NaN or "
                "infinity in its weights"
            )
        return cls(exact, largest_error(own, exact))

    @property
    def tolerance(self) -> float:
        return max(FLOOR, TIMES_OWN * self.own_error)


def largest_error(found: tuple[NDArray[np.floating], ...], exact: tuple[NDArray[np.float64], ...]) -> float:
    """The largest difference, relative to the largest logit of the same exit; infinity where something is not a number."""
    errors = [np.abs(f - e).max() / max(np.abs(e).max(), 1e-30) for f, e in zip(found, exact, strict=True)]
    return max(float(error) if np.isfinite(error) else float("inf") for error in errors)


def check_close(what: str, found: tuple[NDArray[np.floating], ...], reference: Reference) -> float:
    """The error; raises if it is larger than rounding explains."""
    shapes = [[array.shape for array in arrays] for arrays in (found, reference.outputs)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"{what}: its outputs have shapes {shapes[0]}, the model's {shapes[1]}; nothing was written")
    error = largest_error(found, reference.outputs)
    if not (math.isfinite(error) and error <= reference.tolerance):
        raise ValueError(
            f"{what}: its logits differ from the model's by {error:.1e} of the largest, more than {reference.tolerance:.1e}, "
            "which rounding would explain; nothing was written"
        )
    return error


@torch.no_grad()
def _outputs(model: nn.Module, images: Tensor) -> tuple[NDArray[np.float64], ...]:
    outputs = model(images)
    return tuple(each.double().numpy() for each in (outputs if isinstance(outputs, tuple) else (outputs,)))
