"""The DTN release (arXiv 2112.02624): three families of models.

vit_norm_*    patch_embed.proj, blocks.i       class token enters before block l; both norms of blocks 0..l-1 are replaced
vit_*         to_patch_embedding, transformer  class token from the start; the norm before attention is, in every block
pvt_*_norm    patch_embed1..4, block1..4       both norms of the blocks of stages 1-3
"""

import math
import re
from typing import Any

from torch import Tensor, nn

from ..pvt import PyramidVisionTransformer, released_pool
from ..vit import VisionTransformer
from .family import Family, State, Wanted, blocks_below, shared_options, side, square
from .norms import NORMS

DEPTH = 12  # of all ViTs of the release
DEFAULT_NORM_BLOCKS = 10  # of its training script

_PVT_DEPTHS = {"tiny": (2, 2, 2, 2), "small": (3, 4, 6, 3), "medium": (3, 4, 18, 3), "large": (3, 8, 27, 3)}
_VIT_SIZES = {"ti": (192, 3), "ti_star": (192, 4), "s": (384, 6), "s_star": (432, 9), "b": (768, 12), "b_star": (768, 16)}

# Names of the "vit" family, ours -> theirs.
_VIT_KEYS = (
    (r"cls_token", "cls_token"),
    (r"pos_embed", "pos_embedding"),
    (r"patch_embed\.proj\.(\w+)", r"to_patch_embedding.1.\1"),
    (r"blocks\.(\d+)\.norm1\.(.+)", r"transformer.layers.\1.0.norm.\2"),
    (r"blocks\.(\d+)\.attn\.qkv\.(.+)", r"transformer.layers.\1.0.fn.to_qkv.\2"),
    (r"blocks\.(\d+)\.attn\.proj\.(.+)", r"transformer.layers.\1.0.fn.to_out.0.\2"),
    (r"blocks\.(\d+)\.norm2\.(.+)", r"transformer.layers.\1.1.norm.\2"),
    (r"blocks\.(\d+)\.mlp\.fc1\.(.+)", r"transformer.layers.\1.1.fn.net.0.\2"),
    (r"blocks\.(\d+)\.mlp\.fc2\.(.+)", r"transformer.layers.\1.1.fn.net.3.\2"),
    (r"norm\.(.+)", r"mlp_head.0.\1"),
    (r"head\.(.+)", r"mlp_head.1.\1"),
)


def _vit_key(ours: str) -> str:
    return next(re.sub(pattern, name, ours) for pattern, name in _VIT_KEYS if re.fullmatch(pattern, ours))


def _convolution(value: Tensor) -> Tensor:
    """A linear on pixels (row, column, channel) of a patch -> a convolution (c, channel, row, column)."""
    patch = math.isqrt(value.shape[1] // 3)
    if 3 * patch**2 != value.shape[1]:
        return value  # its shape will be reported
    return value.unflatten(1, (patch, patch, 3)).permute(0, 3, 1, 2)


def _patch(state: State, key: str, default: int) -> int:
    return state[key].shape[-1] if key in state else default


def _build_vit_norm(state: State, wanted: Wanted) -> nn.Module:
    patch, grid = _patch(state, "patch_embed.proj.weight", 16), side(state, wanted, "pos_embed", 14)
    options = shared_options(state, wanted, "head.weight")
    if wanted.norm == "dtn_pool":
        options["norm_options"]["pool"] = released_pool((grid, grid))
    # With the norm in all blocks the release never adds its class token, and classifies the first patch instead.
    without_token = wanted.norm_blocks == wanted.sizes["depth"]
    options |= {"class_token": "none" if without_token else "late", "norm_blocks": wanted.norm_blocks}
    model = VisionTransformer(img_size=patch * grid, patch_size=patch, **options)
    if without_token:
        model.global_pool = "token"
    return model


def _build_vit(state: State, wanted: Wanted) -> nn.Module:
    patches = "to_patch_embedding.1.weight"
    patch = square(wanted.arch, patches, state[patches].shape[1] // 3) if patches in state else 16
    grid = side(state, wanted, "pos_embedding", 14, prefix=1)
    options = shared_options(state, wanted, "mlp_head.1.weight")
    options |= {"class_token": "start", "norm_sites": "attn", "norm_blocks": wanted.sizes["depth"]}
    return VisionTransformer(img_size=patch * grid, patch_size=patch, **options)


def _build_pvt(state: State, wanted: Wanted) -> nn.Module:
    patch, grid = _patch(state, "patch_embed1.proj.weight", 4), side(state, wanted, "pos_embed1", 56)
    return PyramidVisionTransformer(img_size=patch * grid, patch_size=patch, **shared_options(state, wanted, "head.weight"))


def _vits(family: str, *sizes: str) -> dict[str, dict[str, Any]]:
    found = {f"{family}_{size}": _VIT_SIZES[size] for size in sizes}
    return {name: {"embed_dim": dim, "depth": DEPTH, "heads": heads} for name, (dim, heads) in found.items()}


WITHOUT_DTN = ("layer", "batch", "power", "insnorm", "gnorm", "scale")

VIT = Family(
    mark="transformer.layers.",
    archs=_vits("vit", *_VIT_SIZES),
    norms=WITHOUT_DTN,  # DTN refuses the class token there
    sites=re.compile(r"(transformer\.layers\.(\d+)\.0\.norm)\.(.+)"),
    depth=lambda state: blocks_below(state, r"transformer\.layers"),
    build=_build_vit,
    key=_vit_key,
    transforms={"patch_embed.proj.weight": _convolution},
)
PVT = Family(
    mark="patch_embed1.",
    archs={f"pvt_{size}_norm": {"depths": depths, "heads": (4, 4, 5, 8)} for size, depths in _PVT_DEPTHS.items()},
    norms=("layer", "dtn_pool", *WITHOUT_DTN[1:]),  # "dtn" is for 14x14 grids only
    sites=re.compile(r"(block[123]\.(\d+)\.norm[12])\.(.+)"),
    depth=lambda state: tuple(blocks_below(state, f"block{stage}") for stage in (1, 2, 3, 4)),
    build=_build_pvt,
)
VIT_NORM = Family(
    mark="blocks.",
    archs=_vits("vit_norm", "ti_star", "s", "s_star", "b", "b_star"),
    norms=tuple(name for name in NORMS if name != "un"),
    sites=re.compile(r"(blocks\.(\d+)\.norm[12])\.(.+)"),
    depth=lambda state: blocks_below(state, "blocks"),
    build=_build_vit_norm,
)
