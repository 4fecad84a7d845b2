"""Released state dicts made up from names alone: which keys and shapes each model of the DTN release and of T2T-ViT has.

Written from the specification, not from our models, so that a wrong name in the importer shows.
"""

import zlib
from collections.abc import Iterator

import numpy as np
import torch

Shapes = dict[str, tuple[int, ...]]

VIT_NORM = {
    "vit_norm_ti_star": (192, 4),
    "vit_norm_s": (384, 6),
    "vit_norm_s_star": (432, 9),
    "vit_norm_b": (768, 12),
    "vit_norm_b_star": (768, 16),
}
VIT = {
    "vit_ti": (192, 3),
    "vit_ti_star": (192, 4),
    "vit_s": (384, 6),
    "vit_s_star": (432, 9),
    "vit_b": (768, 12),
    "vit_b_star": (768, 16),
}
PVT = {
    "pvt_tiny_norm": (2, 2, 2, 2),
    "pvt_small_norm": (3, 4, 6, 3),
    "pvt_medium_norm": (3, 4, 18, 3),
    "pvt_large_norm": (3, 8, 27, 3),
}
T2T = {
    "t2t_vit_7": ("performer", 256, 7, 2),
    "t2t_vit_10": ("performer", 256, 10, 2),
    "t2t_vit_12": ("performer", 256, 12, 2),
    "t2t_vit_14": ("performer", 384, 14, 3),
    "t2t_vit_19": ("performer", 448, 19, 3),
    "t2t_vit_24": ("performer", 512, 24, 3),
    "t2t_vit_t_14": ("transformer", 384, 14, 3),
    "t2t_vit_t_19": ("transformer", 448, 19, 3),
    "t2t_vit_t_24": ("transformer", 512, 24, 3),
}
NORMS = ("layer", "dtn", "dtn_var", "dtn_pool", "batch", "power", "insnorm", "gnorm", "scale")
WITHOUT_DTN = tuple(name for name in NORMS if not name.startswith("dtn"))
CASES = [
    *((arch, norm) for arch in VIT_NORM for norm in NORMS),
    *((arch, norm) for arch in VIT for norm in WITHOUT_DTN),
    *((arch, norm) for arch in PVT for norm in ("dtn_pool", *WITHOUT_DTN)),
    *((arch, norm) for arch in T2T for norm in ("layer", "un")),
]


def shapes(arch: str, norm: str = "layer", *, norm_blocks: int = 10, classes: int = 1000) -> Shapes:
    if arch in VIT_NORM:
        return dict(_vit_norm(*VIT_NORM[arch], norm, norm_blocks, classes))
    if arch in VIT:
        return dict(_vit(*VIT[arch], norm, classes))
    if arch in PVT:
        return dict(_pvt(PVT[arch], norm, classes))
    return dict(_t2t(*T2T[arch], norm, classes))


def _norm(path: str, kind: str, c: int, h: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    if kind == "scale":
        yield f"{path}.scale", (c,)
        return
    yield from _pair(path, (c,), c)
    if kind.startswith("dtn"):
        if kind != "dtn_var":
            yield f"{path}.mean_norm_weight", (h,)
        yield f"{path}.var_norm_weight", (h,)
        yield from _pair(f"{path}.pos_proj", (h, 3), h)
    if kind == "batch":
        yield f"{path}.bn.running_mean", (c,)
        yield f"{path}.bn.running_var", (c,)
        yield f"{path}.bn.num_batches_tracked", ()
    if kind == "power":
        yield f"{path}.running_phi", (1, c, 1, 1)
        yield f"{path}.ema_gz", (1, c, 1, 1)
        yield f"{path}.iters", (1,)
    if kind == "un":
        yield f"{path}.running_var", (c,)
        yield f"{path}.ema_gz", (c,)
        yield f"{path}.iters", (1,)
        yield f"{path}.buffer_x2", (4, c)
        yield f"{path}.buffer_gz", (4, c)
        yield f"{path}.skip_counter", (1,)


def _pair(path: str, weight: tuple[int, ...], bias: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{path}.weight", weight
    yield f"{path}.bias", (bias,)


def _vit_norm(c: int, h: int, norm: str, norm_blocks: int, classes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "cls_token", (1, 1, c)
    yield "pos_embed", (1, 196, c)
    yield from _pair("patch_embed.proj", (c, 3, 16, 16), c)
    yield from _blocks(c, h, 12, 4, norm, norm_blocks)
    yield from _pair("norm", (c,), c)
    yield from _pair("head", (classes, c), classes)


def _blocks(c: int, h: int, depth: int, ratio: int, norm: str, norm_blocks: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for i in range(depth):
        kind = norm if i < norm_blocks else "layer"
        yield from _norm(f"blocks.{i}.norm1", kind, c, h)
        yield f"blocks.{i}.attn.qkv.weight", (3 * c, c)
        yield from _pair(f"blocks.{i}.attn.proj", (c, c), c)
        yield from _norm(f"blocks.{i}.norm2", kind, c, h)
        yield from _pair(f"blocks.{i}.mlp.fc1", (ratio * c, c), ratio * c)
        yield from _pair(f"blocks.{i}.mlp.fc2", (c, ratio * c), c)


def _vit(c: int, h: int, norm: str, classes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "pos_embedding", (1, 197, c)
    yield "cls_token", (1, 1, c)
    yield from _pair("to_patch_embedding.1", (c, 768), c)
    for i in range(12):
        layer = f"transformer.layers.{i}"
        yield from _norm(f"{layer}.0.norm", norm, c, h)
        yield f"{layer}.0.fn.to_qkv.weight", (3 * c, c)
        yield from _pair(f"{layer}.0.fn.to_out.0", (c, c), c)
        yield from _norm(f"{layer}.1.norm", "layer", c, h)
        yield from _pair(f"{layer}.1.fn.net.0", (4 * c, c), 4 * c)
        yield from _pair(f"{layer}.1.fn.net.3", (c, 4 * c), c)
    yield from _pair("mlp_head.0", (c,), c)
    yield from _pair("mlp_head.1", (classes, c), classes)


def _pvt(depths: tuple[int, ...], norm: str, classes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    before = 3
    for stage, c, h, ratio, cut, tokens in zip(
        (1, 2, 3, 4), (64, 128, 320, 512), (4, 4, 5, 8), (8, 8, 4, 4), (8, 4, 2, 1), (3136, 784, 196, 50), strict=True
    ):
        patch = 4 if stage == 1 else 2
        yield f"pos_embed{stage}", (1, tokens, c)
        yield from _pair(f"patch_embed{stage}.proj", (c, before, patch, patch), c)
        yield from _pair(f"patch_embed{stage}.norm", (c,), c)
        for i in range(depths[stage - 1]):
            block, kind = f"block{stage}.{i}", norm if stage < 4 else "layer"
            yield from _norm(f"{block}.norm1", kind, c, h)
            yield from _pair(f"{block}.attn.q", (c, c), c)
            yield from _pair(f"{block}.attn.kv", (2 * c, c), 2 * c)
            yield from _pair(f"{block}.attn.proj", (c, c), c)
            if cut > 1:
                yield from _pair(f"{block}.attn.sr", (c, c, cut, cut), c)
                yield from _pair(f"{block}.attn.norm", (c,), c)
            yield from _norm(f"{block}.norm2", kind, c, h)
            yield from _pair(f"{block}.mlp.fc1", (ratio * c, c), ratio * c)
            yield from _pair(f"{block}.mlp.fc2", (c, ratio * c), c)
        before = c
    yield "cls_token", (1, 1, 512)
    yield from _pair("norm", (512,), 512)
    yield from _pair("head", (classes, 512), classes)


def _t2t(kind: str, c: int, depth: int, ratio: int, norm: str, classes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "cls_token", (1, 1, c)
    yield "pos_embed", (1, 197, c)
    for at, seen in ((1, 147), (2, 576)):
        path = f"tokens_to_token.attention{at}"
        yield from _norm(f"{path}.norm1", norm, seen, 1)
        yield from _norm(f"{path}.norm2", norm, 64, 1)
        if kind == "performer":
            yield f"{path}.w", (32, 64)
            yield from _pair(f"{path}.kqv", (192, seen), 192)
            yield from _pair(f"{path}.proj", (64, 64), 64)
            yield from _pair(f"{path}.mlp.0", (64, 64), 64)
            yield from _pair(f"{path}.mlp.2", (64, 64), 64)
        else:
            yield f"{path}.attn.qkv.weight", (192, seen)
            yield from _pair(f"{path}.attn.proj", (64, 64), 64)
            yield from _pair(f"{path}.mlp.fc1", (64, 64), 64)
            yield from _pair(f"{path}.mlp.fc2", (64, 64), 64)
    yield from _pair("tokens_to_token.project", (c, 576), c)
    yield from _blocks(c, 1, depth, ratio, norm, depth)
    yield from _norm("norm", norm, c, 1)
    yield from _pair("head", (classes, c), classes)


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The goldens' rule: numbers that depend on the name alone."""
    return np.random.Generator(np.random.Philox(key=zlib.crc32(name.encode()))).standard_normal(tuple(shape))


def dtn_value(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Weights of the DTN goldens (golden/dtn/README.md, section 1), float32."""
    last = name.rpartition(".")[2]
    if last in ("num_batches_tracked", "iters"):
        return torch.zeros(tuple(shape), dtype=torch.int64)
    v = draw(name, shape)
    if last in ("mean_norm_weight", "var_norm_weight"):
        value = v
    elif name.endswith("pos_proj.weight"):
        value = v * [0.5, 0.5, 0.05] + [0, 0, -0.15]
    elif last == "scale":
        value = np.sqrt(shape[0]) * (1 + 0.1 * v)
    elif last in ("running_var", "running_phi"):
        value = 1 + 0.1 * v
    elif last in ("running_mean", "ema_gz"):
        value = 0.1 * v
    elif last.startswith("pos_embed") or last == "cls_token":
        value = 0.2 * v
    elif last == "bias":
        value = 0.1 * v
    elif len(shape) == 1:
        value = 1 + 0.1 * v
    else:
        value = v / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(np.asarray(value)).float()
