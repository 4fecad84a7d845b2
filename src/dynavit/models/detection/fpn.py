"""Feature pyramid network: every level also knows what coarser ones see. Lin et al. 2017, arXiv 1612.03144.

As in MMDetection: 1x1 laterals, nearest upsampling to the finer map's size, sums, 3x3 convolutions, no norm and no activation.
"""

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from .padding import without_padding


class Coarser(nn.Conv2d):
    """3x3 convolution of stride 2, which pads by itself.

    If oneDNN pads, in bfloat16 with AVX-512, a map of one column gets a gradient of the weight that holds whatever was in
    memory, NaN too, where the kernel sees padding alone (torch 2.13).
    """

    def __init__(self, own: int, width: int) -> None:
        super().__init__(own, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (1, 1, 1, 1)))


class FPN(nn.Module):
    """Maps (b, channels_i, rows_i, cols_i), fine to coarse -> maps of `width` channels, and coarser ones behind them.

    Args:
        channels: of the maps.
        extra: "convolved": two more levels by 3x3 convolutions of stride 2, the first of the last *input*, the second of the
            first (RetinaNet). "subsampled": one more, every second cell of the last output (Mask R-CNN).
    """

    def __init__(self, channels: Sequence[int], width: int, extra: Literal["convolved", "subsampled"]) -> None:
        super().__init__()
        self.width = width
        self.laterals = nn.ModuleList(nn.Conv2d(own, width, 1) for own in channels)
        self.outputs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in channels)
        inputs = (channels[-1], width) if extra == "convolved" else ()
        self.coarser = nn.ModuleList(Coarser(own, width) for own in inputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, maps: Sequence[Tensor], real: Sequence[Tensor | None] | None = None) -> list[Tensor]:
        """`real` (b, rows, cols) of each level that goes out: cells outside are 0 before every convolution."""
        masks = list(real) if real is not None else [None] * (len(maps) + max(len(self.coarser), 1))
        merged: list[Tensor] = [lateral(x) for lateral, x in zip(self.laterals, maps, strict=True)]
        for at in range(len(merged) - 2, -1, -1):
            finer, coarser = merged[at], merged[at + 1]
            merged[at] = finer + F.interpolate(coarser, size=finer.shape[2:], mode="nearest")
        found = [
            without_padding(output(without_padding(x, mask)), mask)
            for output, x, mask in zip(self.outputs, merged, masks, strict=False)
        ]
        if not self.coarser:
            return [*found, F.max_pool2d(found[-1], 1, stride=2)]
        x = maps[-1]
        for convolve, mask in zip(self.coarser, masks[len(maps) :], strict=True):
            x = without_padding(convolve(x), mask)
            found.append(x)
        return found
