"""A plain vision transformer as a pyramid: its one map, made finer and coarser. Li et al. 2022, arXiv 2203.16527."""

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, get_type_hints

from torch import Tensor, nn

from ..layers import pair
from ..registry import MODELS
from ..vit import PatchEmbed, VisionTransformer
from .pyramid import ChannelNorm, Padding, Pyramid

PATCH = 16
WIDEST = 256  # channels of a map


class VitPyramid(Pyramid):
    """The last block's map of 1/16: finer by transposed convolutions, coarser by a max pool; then a 1x1 and a 3x3 convolution.

    Every block attends to the whole image.
    """

    as_body: ClassVar[dict[str, Any]] = {"num_classes": 0, "class_token": "none"}
    body: VisionTransformer

    def __init__(self, body: nn.Module, levels: Sequence[int], padding: Padding) -> None:
        assert isinstance(body, VisionTransformer)
        if not isinstance(body.patch_embed, PatchEmbed) or pair(body.patch_embed.patch_size) != (PATCH, PATCH):
            raise ValueError("a ViT gives a pyramid of 1/4 to 1/32 from patches of 16 pixels: patch_size is 16, without a stem")
        dim = body.embed_dim
        width = min(dim, WIDEST)
        body.norm = body.head = body.head_drop = nn.Identity()
        super().__init__(body, (width,) * 4, levels, padding)
        finer = [nn.ConvTranspose2d(dim, dim // 2, 2, 2), ChannelNorm(dim // 2), nn.GELU()]
        finest = [*finer, nn.ConvTranspose2d(dim // 2, dim // 4, 2, 2)]
        scaled = {
            0: (nn.Sequential(*finest), dim // 4),
            1: (nn.ConvTranspose2d(dim, dim // 2, 2, 2), dim // 2),
            2: (nn.Identity(), dim),
            3: (nn.MaxPool2d(2), dim),
        }
        self.scales = nn.ModuleList(scaled[at][0] for at in self.levels)
        self.narrow = nn.ModuleList(
            nn.Sequential(nn.Conv2d(scaled[at][1], width, 1, bias=False), ChannelNorm(width)) for at in self.levels
        )
        self.smooth = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), ChannelNorm(width)) for at in self.levels
        )

    @staticmethod
    def fits(backbone: str) -> bool:
        return get_type_hints(inspect.unwrap(MODELS[backbone])).get("return") is VisionTransformer

    def maps(self, images: Tensor, sizes: Tensor | None) -> list[Tensor]:
        body = self.body
        tokens, grid = body.patch_embed(images)
        real = self.real(sizes, PATCH, grid)
        mask = None if real is None else real.flatten(1)
        tokens = tokens + self.positions(body.pos_embed, body.grid_size, grid, real)
        for block in body.blocks:
            tokens = body.run(block, tokens, grid, mask)
        one = self.hidden(tokens.transpose(1, 2).unflatten(2, grid).contiguous(), real)
        found = []
        for stride, scale, narrow, smooth in zip(self.strides, self.scales, self.narrow, self.smooth, strict=True):
            x = scale(one)
            own = self.real(sizes, stride, (x.shape[2], x.shape[3]))
            x = self.hidden(narrow(x), own)
            found.append(self.hidden(smooth(x), own))
        return found
