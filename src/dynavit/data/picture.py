"""An image as it goes into a model, as a small picture inside a JSON file or a page."""

import base64
import io

import torch
from torch import Tensor

LARGEST_SIDE = 96  # pixels; a page is not an album


def data_uri(normalised: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> str:
    """(c, h, w) as it goes into a model -> a PNG inside a URI."""
    from PIL import Image

    channels = [value * s + m for value, m, s in zip(normalised.double().cpu(), mean, std, strict=True)]
    pixels = (torch.stack(channels).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).squeeze(-1)
    image = Image.fromarray(pixels.numpy())
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
