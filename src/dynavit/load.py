"""Files to models."""

from os import PathLike
from typing import Any

import torch
from torch import nn

from .models.released import import_released


def load_released(path: str | PathLike[str], arch: str | None = None, norm: str | None = None, **options: Any) -> nn.Module:
    """A released checkpoint file -> a model of ours, in evaluation mode; see `import_released` for the rest.

    The file is read as weights only: a checkpoint that holds code or other objects is refused.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch raises whatever its unpickler trips over
        raise ValueError(
            f"{path}: not a checkpoint that torch can read as weights only ({type(error).__name__}: {error})"
        ) from error
    return import_released(checkpoint, arch, norm, **options)
