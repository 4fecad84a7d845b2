"""The code of ImageNet-C itself, from the package `imagecorruptions-imaug`, image by image."""

import numpy as np
import torch
from torch import Tensor

from .sampling import derive_seed

LEAST_SIDE = 32  # the package's own limit
TAKES_A_SEED = ("impulse_noise", "glass_blur")  # the others draw from numpy's global generator


def corrupt_exactly(images: Tensor, name: str, severity: int, seed: int, index: Tensor) -> Tensor:
    """(b, 3, h, w) uint8 to the same. numpy's global generator is left as it was."""
    try:
        from imagecorruptions import corrupt
    except ImportError as error:
        raise ValueError(
            f"exact corruptions need a package that is missing ({error}): pip install 'dynavit[robust]'"
        ) from error
    if images.shape[1] != 3 or min(images.shape[2:]) < LEAST_SIDE:
        raise ValueError(
            f"exact corruptions take colour images of {LEAST_SIDE} px and more, these are {tuple(images.shape[1:])}; "
            f"leave out exact for the others"
        )
    before, results = np.random.get_state(), []
    try:
        for image, number in zip(images.permute(0, 2, 3, 1).cpu().numpy(), index.tolist(), strict=True):
            own = derive_seed(seed, number) % 2**32
            np.random.seed(own)
            results.append(corrupt(image, severity, name, **({"seed": own} if name in TAKES_A_SEED else {})))
    finally:
        np.random.set_state(before)
    return torch.from_numpy(np.stack(results)).permute(0, 3, 1, 2).contiguous().to(images.device)
