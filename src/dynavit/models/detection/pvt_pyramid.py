"""PVT as a pyramid: its four stages without class token, last norm and classifier. Stage outputs go out as they are."""

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, get_type_hints

from torch import Tensor, nn

from ..pvt import STAGES, PyramidVisionTransformer
from ..registry import MODELS
from .pyramid import Padding, Pyramid


class PvtPyramid(Pyramid):
    """Four stages of PVT. Wang et al. 2021, arXiv 2102.12122."""

    as_body: ClassVar[dict[str, Any]] = {"num_classes": 0}
    body: PyramidVisionTransformer

    def __init__(self, body: nn.Module, levels: Sequence[int], padding: Padding) -> None:
        assert isinstance(body, PyramidVisionTransformer)
        if body.patch_size != 4:
            raise ValueError(f"a pyramid starts at 1/4 of the image: patch_size is 4; got {body.patch_size}")
        positions = body.get_parameter("pos_embed4")
        body.pos_embed4 = nn.Parameter(positions[:, 1:].detach().clone())  # the first is the class token's
        del body.cls_token
        body.norm = body.head = body.head_drop = nn.Identity()
        body.num_prefix_tokens = 0
        super().__init__(body, body.embed_dims, levels, padding)

    @staticmethod
    def fits(backbone: str) -> bool:
        return get_type_hints(inspect.unwrap(MODELS[backbone])).get("return") is PyramidVisionTransformer

    def maps(self, images: Tensor, sizes: Tensor | None) -> list[Tensor]:
        body, x, found = self.body, images, []
        body._grids(images)
        for at, stage in enumerate(STAGES[: self.levels[-1] + 1]):
            stride = 4 * 2**at
            grid = (images.shape[2] // stride, images.shape[3] // stride)
            real = self.real(sizes, stride, grid)
            mask = None if real is None else real.flatten(1)
            tokens, _ = body.get_submodule(f"patch_embed{stage}")(x, mask)
            learned = body.get_parameter(f"pos_embed{stage}")
            tokens = body.pos_drop(tokens + self.positions(learned, body.grids[at], grid, real))
            for block in body.get_submodule(f"block{stage}").children():
                tokens = body.run(block, tokens, grid, mask)
            x = self.hidden(tokens.transpose(1, 2).unflatten(2, grid).contiguous(), real)
            found.append(x)
        return [found[at] for at in self.levels]
