"""A backbone as a pyramid: feature maps of 1/4, 1/8, 1/16 and 1/32 of an image of any size, from a model made to classify.

    pyramid(images, sizes) -> [(b, c, rows, cols), ...], coarser from map to map

`sizes` (b, 2) are heights and widths of the images in a batch that is padded on the right and at the bottom. What padding may
influence is chosen by name:

    none  everything, as if it were a part of the image
    norm  all but norms: the norm of an image does not depend on its neighbours in the batch
    all   nothing: keys are left out of attention, padded tokens are 0 before convolutions, positions fit each image's own grid
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...common.registry import nearest_match_error
from ..layers import make_norm
from .padding import real_cells, without_padding

Padding: TypeAlias = Literal["none", "norm", "all"]
PADDINGS: tuple[Padding, ...] = ("none", "norm", "all")
STRIDES = (4, 8, 16, 32)


class Pyramid(nn.Module):
    """Maps of the chosen levels of a body. A subclass writes `maps`.

    Attributes:
        body: the model, without what only a classifier needs. Weights of a trained classifier go here.
        channels, strides: of the maps.
        levels: which of the four maps are made, counted from 0.
    """

    body: nn.Module
    padding: Padding

    def __init__(self, body: nn.Module, channels: Sequence[int], levels: Sequence[int], padding: Padding) -> None:
        super().__init__()
        self.body = body
        self.levels = tuple(levels)
        self.channels, self.strides = tuple(channels[at] for at in levels), tuple(STRIDES[at] for at in levels)
        self.set_padding(padding)

    def set_padding(self, padding: Padding) -> None:
        """Choose what padding may influence, see the module."""
        self.padding = padding
        for module in self.body.modules():
            if hasattr(module, "hides_padding"):
                setattr(module, "hides_padding", padding == "all")  # noqa: B010  (a module's attributes are tensors to mypy)

    def forward(self, images: Tensor, sizes: Tensor | None = None) -> list[Tensor]:
        if images.dim() != 4 or any(side % STRIDES[-1] for side in images.shape[2:]):
            raise ValueError(
                f"a pyramid takes (batch, channels, height, width) with sides that are multiples of {STRIDES[-1]}; "
                f"got {tuple(images.shape)}, pad it on the right and at the bottom"
            )
        return self.maps(images, sizes if self.padding != "none" else None)

    def maps(self, images: Tensor, sizes: Tensor | None) -> list[Tensor]:
        """The maps; `sizes` is None where padding may influence everything."""
        raise NotImplementedError

    def real(self, sizes: Tensor | None, stride: int, grid: tuple[int, int]) -> Tensor | None:
        """(b, rows, cols), True for cells that hold a part of their image; None if all do."""
        if sizes is None:
            return None
        cells = real_cells(sizes, stride, grid)
        return None if bool(cells.all()) else cells

    def hidden(self, x: Tensor, real: Tensor | None) -> Tensor:
        """A map with 0 in its padding, where nothing may depend on that."""
        return without_padding(x, real) if self.padding == "all" else x

    def positions(self, learned: Tensor, own: tuple[int, int], grid: tuple[int, int], real: Tensor | None) -> Tensor:
        """Learned positions (1, t, c) of their own grid on that of a batch, or of each image: (1 or b, rows * cols, c)."""
        cells = None
        if self.padding == "all" and real is not None:
            cells = torch.stack([real.any(2).sum(1), real.any(1).sum(1)], 1)
        return resized_positions(learned, own, grid, cells)

    def extra_repr(self) -> str:
        return f"levels={self.levels}, padding={self.padding!r}"


def resized_positions(learned: Tensor, own: tuple[int, int], grid: tuple[int, int], cells: Tensor | None = None) -> Tensor:
    """Positions (1, t, c) of their own grid, bilinearly on another, (1, rows * cols, c).

    With `cells` (b, 2), rows and columns that each image fills: on these for each image, 0 elsewhere, (b, rows * cols, c).
    """
    image = learned.unflatten(1, own).permute(0, 3, 1, 2)

    def on(size: tuple[int, int]) -> Tensor:
        return image if size == own else F.interpolate(image, size, mode="bilinear", align_corners=False)

    if cells is None:
        return on(grid).flatten(2).transpose(1, 2)
    sizes = [(rows, cols) for rows, cols in cells.tolist()]
    resized = {size: on(size) for size in set(sizes)}
    whole = [F.pad(resized[rows, cols], (0, grid[1] - cols, 0, grid[0] - rows)) for rows, cols in sizes]
    return torch.cat(whole).flatten(2).transpose(1, 2)


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of a map (b, c, rows, cols)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = make_norm("ln", channels, 1, {"eps": 1e-6})

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def build_pyramid(
    backbone: str,
    *,
    norm: str | None = None,
    norm_options: dict[str, Any] | None = None,
    padding: Padding | None = None,
    levels: Sequence[int] = (0, 1, 2, 3),
    options: dict[str, Any] | None = None,
) -> Pyramid:
    """The pyramid of a model by name: a PVT or ViT of ours, or a model of timm with maps of 1/4 to 1/32.

    Args:
        padding: see the module; "norm" if not given, "none" for models of timm, which take no mask.
        options: of the backbone, as for `create_model`.
    """
    from ..registry import MODELS, create_model
    from .pvt_pyramid import PvtPyramid
    from .timm_pyramid import TimmPyramid, built_for_any_size
    from .vit_pyramid import VitPyramid

    if padding is not None and padding not in PADDINGS:
        raise nearest_match_error("padding", padding, PADDINGS)
    given: dict[str, Any] = {"norm": norm, "norm_options": norm_options, **(options or {})}
    if backbone not in MODELS:
        if padding not in (None, "none"):
            raise ValueError(
                f"{backbone} is a model of timm, which takes no mask: padding={padding!r} cannot be kept; leave it out (none), "
                "or take a backbone of ours, such as pvt_tiny"
            )
        return TimmPyramid(built_for_any_size(backbone, given), backbone, levels)
    for kind in (PvtPyramid, VitPyramid):
        if kind.fits(backbone):
            body = create_model(backbone, **{**given, **kind.as_body})
            return kind(body, levels, padding or "norm")
    raise ValueError(f"{backbone} has no pyramid of feature maps; take a pvt_... or vit_... of ours, or a pyramid of timm")
