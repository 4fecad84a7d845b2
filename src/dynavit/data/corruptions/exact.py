"""The code of ImageNet-C itself, from the package `imagecorruptions-imaug`, image by image."""

import numpy as np
import torch
from torch import Tensor

from ...common.extras import require
from ..sampling import derive_seed

LEAST_SIDE = 32  # the package's own limit
TAKES_A_SEED = ("impulse_noise", "glass_blur")  # the others draw from numpy's global generator


def check_exact(channels: int, height: int, width: int) -> None:
    """ValueError if the package is missing or does not take such images."""
    require("imagecorruptions", "robust", "an exact corruption")
    if channels != 3 or min(height, width) < LEAST_SIDE:
        raise ValueError(
            f"exact corruptions take colour images of {LEAST_SIDE} px and more, these are {(channels, height, width)}; "
            f"leave out exact for the others"
        )


def corrupt_exactly(images: Tensor, name: str, severity: int, seed: int, index: Tensor) -> Tensor:
    """(b, 3, h, w) uint8 to the same. numpy's global generator is left as it was."""
    check_exact(*images.shape[1:])
    from imagecorruptions import corrupt

    before, results = np.random.get_state(), []
    try:
        for image, number in zip(images.permute(0, 2, 3, 1).cpu().numpy(), index.tolist(), strict=True):
            own = derive_seed(seed, number) % 2**32
            np.random.seed(own)
            results.append(corrupt(image, severity, name, **({"seed": own} if name in TAKES_A_SEED else {})))
    finally:
        np.random.set_state(before)
    return torch.from_numpy(np.stack(results)).permute(0, 3, 1, 2).contiguous().to(images.device)
