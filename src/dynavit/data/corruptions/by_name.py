"""The 15 corruptions of ImageNet-C (Hendrycks and Dietterich, ICLR 2019, arXiv 1903.12261), in five severities, on batches.

Arithmetic is in float64: rounding errors are then too small to change a byte, and an image comes out alike in every batch.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ...common.registry import nearest_match_error
from ..sampling import derive_seed
from . import blur, digital, noise, weather
from .exact import corrupt_exactly
from .random import Numbers
from .severities import SMALL_SIDE, TABLES

GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
CORRUPTIONS: tuple[str, ...] = tuple(name for names in GROUPS.values() for name in names)
SEVERITIES = (1, 2, 3, 4, 5)

_MODULES = {
    "noise": noise,
    "blur": blur,
    "weather": weather,
    "digital": digital,
}
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    name: getattr(_MODULES[group], name) for group, names in GROUPS.items() for name in names
}
_LEAST_SIDE = 8
# Values corrupted at once: few enough for the cache; float64 and random numbers take a hundred bytes for each.
_AT_ONCE = 1 << 18


def corrupt(
    images: Tensor,
    name: str,
    severity: int,
    *,
    seed: int = 0,
    index: Tensor | None = None,
    exact: bool = False,
    table: Literal["small", "large", "extra"] | None = None,
) -> Tensor:
    """Corrupted images, (b, c, h, w) uint8 to the same, grey or colour, on any device.

    Args:
        severity: 1 to 5.
        index: (b,) integers, the numbers of the samples in their data set; 0, 1, ... by default. The random numbers of a sample
            depend on (seed, name, severity, number) and nothing else.
        exact: by the `[robust]` extra's own code, for colour images of 32 px and more. It knows the table "extra" only.
        table: which severities: "large" are those of ImageNet-C, stored as JPEG like its files; "small" suit images whose
            shorter side has up to 64 px; None chooses by that side. "extra" are those of the `[robust]` extra, without JPEG.
    """
    _check(images, name, severity, exact, table)
    if index is None:
        index = torch.arange(len(images))
    if index.shape != images.shape[:1]:
        raise ValueError(f"index numbers the {len(images)} samples, its shape is {tuple(index.shape)}; give ({len(images)},)")
    if images.device.type == "mps":  # has no float64
        there = corrupt(images.cpu(), name, severity, seed=seed, index=index, exact=exact, table=table)
        return there.to(images.device)
    index = index.to(images.device)
    own_seed = derive_seed(seed, CORRUPTIONS.index(name), severity)
    if exact:
        return corrupt_exactly(images, name, severity, own_seed, index)
    chosen = TABLES[table or ("small" if min(images.shape[2:]) <= SMALL_SIDE else "large")]
    strengths = chosen.strengths[name][severity - 1]
    few = max(1, _AT_ONCE // images[0].numel()) if len(images) else 1
    parts = zip(images.split(few), index.split(few), strict=True)
    result = torch.cat([_bytes(_FUNCTIONS[name](part.double() / 255, Numbers(own_seed, i), *strengths)) for part, i in parts])
    return digital.through_jpeg(result, chosen.jpeg) if chosen.jpeg is not None and len(result) else result


def _bytes(x: Tensor) -> Tensor:
    """Rounded down, as in ImageNet-C, except that 254.9999 is 255."""
    return (x.clamp(0, 1) * 255 + 1e-3).byte()


def _check(images: Tensor, name: str, severity: int, exact: bool, table: str | None) -> None:
    if name not in CORRUPTIONS:
        raise nearest_match_error("corruption", name, CORRUPTIONS)
    if severity not in SEVERITIES:
        raise ValueError(f"severity {severity!r}: it is one of 1, 2, 3, 4, 5")
    if table is not None and table not in TABLES:
        raise nearest_match_error("table of severities", table, TABLES)
    if exact and table not in (None, "extra"):
        raise ValueError(f'exact corruptions know the table "extra" only, not {table!r}; leave out table, or exact')
    if images.dtype != torch.uint8:
        raise ValueError(f"corruptions take images of uint8, these are {images.dtype}; corrupt before normalising")
    if images.dim() != 4 or images.shape[1] not in (1, 3) or min(images.shape[2:]) < _LEAST_SIDE:
        raise ValueError(
            f"corruptions take images of shape (b, 1 or 3, height, width), sides of {_LEAST_SIDE} px and more, "
            f"not {tuple(images.shape)}"
        )
