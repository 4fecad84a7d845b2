"""Checkpoints of other people's releases: their state dicts become models of ours that give the same logits.

DTN (arXiv 2112.02624) released three families, told apart by their keys:

    vit_norm_*    patch_embed.proj, blocks.i       class token enters before block l; both norms of blocks 0..l-1 are replaced
    vit_*         to_patch_embedding, transformer  class token from the start; the norm before attention is, in every block
    pvt_*_norm    patch_embed1..4, block1..4       both norms of the blocks of stages 1-3

and T2T-ViT (arXiv 2101.11986) `t2t_vit_*`, `t2t_vit_t_*`; UN (arXiv 2208.01313) has these with every norm, the tokenizer's and
the last one too, replaced; DVT (arXiv 2105.15075) is in `dvt`. We go through the
parameters of our model and ask, for each, which key of the release holds it; what no parameter asks for is dropped if we know
it to be without effect, else an error.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...common.registry import nearest_match_error
from ...norms.contract import Norm
from ...norms.factory import norm_class_of
from ...norms.statistics.smoothed import SmoothedNorm
from ..cascade.entries import DVT_SIZES
from ..cascade.upsample import Upsample
from ..layers import make_norm
from ..pvt import PyramidVisionTransformer, released_pool
from ..t2t import T2T_SIZES, T2TVisionTransformer
from ..vit import VisionTransformer
from .dvt import build_dvt, is_dvt, released_name, released_numbers

State = dict[str, Tensor]


@dataclass(frozen=True)
class _Arch:
    family: str
    sizes: dict[str, Any]  # options of our model


def _vits(family: str, **sizes: tuple[int, int]) -> dict[str, _Arch]:
    return {f"{family}_{size}": _Arch(family, {"embed_dim": c, "depth": _DEPTH, "heads": h}) for size, (c, h) in sizes.items()}


_DEPTH = 12  # of all ViTs of the DTN release
_PVT_DEPTHS = {"tiny": (2, 2, 2, 2), "small": (3, 4, 6, 3), "medium": (3, 4, 18, 3), "large": (3, 8, 27, 3)}
_ARCHS = {
    **_vits("vit_norm", ti_star=(192, 4), s=(384, 6), s_star=(432, 9), b=(768, 12), b_star=(768, 16)),
    **_vits("vit", ti=(192, 3), ti_star=(192, 4), s=(384, 6), s_star=(432, 9), b=(768, 12), b_star=(768, 16)),
    **{f"pvt_{size}_norm": _Arch("pvt", {"depths": depths, "heads": (4, 4, 5, 8)}) for size, depths in _PVT_DEPTHS.items()},
    **{name: _Arch("t2t", sizes) for name, sizes in T2T_SIZES.items()},
    **{name: _Arch("dvt", {}) for name in DVT_SIZES},
}

# The release's norms: ours, with the options that make it the same.
_NORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "layer": ("ln", {}),
    "dtn": ("dtn_released", {}),
    "dtn_var": ("dtn_released", {"only_var": True}),
    "dtn_pool": ("dtn_released", {}),
    "batch": ("bn", {}),
    "power": ("power", {"backward": "dtn", "warmup": 3000}),
    "insnorm": ("in", {"unbiased": True}),
    "gnorm": ("gn", {}),
    "scale": ("scale", {"per_channel": True}),
    # What a checkpoint does not tell is as the authors trained T2T-ViT.
    "un": ("un", {"official": True, "filtration": True, "warmup": 4000}),
}
_FAMILY_NORMS = {
    "vit_norm": tuple(name for name in _NORMS if name != "un"),
    "vit": ("layer", "batch", "power", "insnorm", "gnorm", "scale"),  # DTN refuses the class token there
    "pvt": ("layer", "dtn_pool", "batch", "power", "insnorm", "gnorm", "scale"),  # "dtn" is for 14x14 grids only
    "t2t": ("layer", "un"),
    "dvt": ("layer",),
}
_ALIKE = ("layer", "insnorm", "gnorm")  # a weight and a bias each: nothing in a checkpoint tells them apart
# Keys below a norm that give it away, most telling first.
_MARKS = {
    "mean_norm_weight": "dtn",
    "var_norm_weight": "dtn_var",
    "bn.running_mean": "batch",
    "running_phi": "power",
    "scale": "scale",
    "buffer_x2": "un",
}

Transform = Callable[[Tensor], Tensor]


def _as_is(value: Tensor) -> Tensor:
    return value


def _position(value: Tensor) -> Tensor:
    """Columns (w0, w1, w2) of (dx, dy, d^2), source to target -> [a_0, a_1, a_2] of (d^2, dx, dy), target to source."""
    if value.dim() != 2 or value.shape[1] != 3:
        return value  # its shape will be complained about
    return torch.stack([value[:, 2], -value[:, 0], -value[:, 1]], 1)


def _patches(value: Tensor) -> Tensor:
    """A linear on pixels (row, column, channel) of a patch -> a convolution (c, channel, row, column)."""
    side = math.isqrt(value.shape[1] // 3)
    if 3 * side**2 != value.shape[1]:
        return value
    return value.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2)


# Our name below a norm -> the release's, and what to do with the value. Others are called the same.
_NORM_KEYS: dict[str, dict[str, tuple[str, Transform]]] = {
    "dtn_released": {
        "mean_logit": ("mean_norm_weight", _as_is),
        "var_logit": ("var_norm_weight", _as_is),
        "position": ("pos_proj.weight", _position),
    },
    "bn": {"running_mean": ("bn.running_mean", _as_is), "running_var": ("bn.running_var", _as_is)},
    "power": {
        "running_phi": ("running_phi", torch.flatten),  # (1, c, 1, 1)
        "ema_gz": ("ema_gz", torch.flatten),
        "iters": ("iters", torch.squeeze),  # (1,)
    },
    "scale": {"weight": ("scale", _as_is)},
}
# Without effect: it cancels in the softmax over positions; a counter nobody reads.
_DROPPED = re.compile(r".*\.norm\d?\.(pos_proj\.bias|bn\.num_batches_tracked)")

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
# The norms that a family can replace, in the release's names; group 1 of vit_norm is the block.
_SITES = {
    "vit_norm": re.compile(r"(blocks\.(\d+)\.norm[12])\.(.+)"),
    "vit": re.compile(r"(transformer\.layers\.(\d+)\.0\.norm)\.(.+)"),
    "pvt": re.compile(r"(block[123]\.(\d+)\.norm[12])\.(.+)"),
    "t2t": re.compile(r"(blocks\.(\d+)\.norm[12])\.(.+)"),
}
_DEFAULT_NORM_BLOCKS = 10  # of the release's training script


def import_released(
    state_dict: Mapping[str, Any],
    arch: str | None = None,
    norm: str | None = None,
    *,
    norm_blocks: int | None = None,
    qk_scale: float | None = None,
    ema: bool = False,
) -> nn.Module:
    """A released state dict -> the same model as one of ours, in evaluation mode.

    Image size and number of classes are read from the shapes; so are `arch` and `norm` where they decide. Where they do not,
    the error lists the candidates: `layer`, `insnorm` and `gnorm` look alike, as do models that differ in heads only. (So
    do the PVT paper's own checkpoints, which are not meant here: they have other heads than the DTN release.)
    What was done is in the model's `import_report`: arch, norm, norm_blocks, `assumed` (defaults that no key confirms),
    `dropped` keys, and `renamed` ones as release's name -> ours. A DVT's costs, accuracies and thresholds are in `released`.

    Args:
        state_dict: the state dict, or a checkpoint that holds it under "state_dict" or "model"; "module." in front is removed.
        arch: the release's name: vit_norm_s_star, vit_s, pvt_tiny_norm, t2t_vit_14, ... A DVT has ours: dvt_t2t_vit_12, ...
        norm: the release's name: layer, dtn, dtn_var, dtn_pool, batch, power, insnorm, gnorm, scale, un.
        norm_blocks: before which block of a vit_norm_* model the class token enters. Read from the keys of all norms but the
            three that look alike; for those 10, the release's default, unless given.
        qk_scale: factor of T2T-ViT's attention logits. None is head_dim ** -0.5; weights published by T2T-ViT need
            embed_dim ** -0.5.
        ema: take the averaged weights of a checkpoint that has both.
    """
    if not isinstance(state_dict, Mapping):
        raise ValueError(f"import_released takes a state dict, names to tensors; got {type(state_dict).__name__}")
    if arch is not None and arch not in _ARCHS:
        raise nearest_match_error("released model", arch, _ARCHS)
    if norm is not None and norm not in _NORMS:
        raise nearest_match_error("released norm", norm, _NORMS)
    state, source = _unwrap(state_dict, ema)
    family = _family(state)
    report: dict[str, Any]
    if family == "dvt":
        if norm not in (None, "layer") or norm_blocks is not None or qk_scale is not None:
            raise ValueError(
                "a DVT has norm 'layer' in all blocks and attention scaled by head_dim ** -0.5; leave the options out"
            )
        with torch.device("meta"):
            cascade, arch = build_dvt(state, arch)
        cascade.released = released_numbers(state_dict)
        report = {"arch": arch, "norm": "layer", "norm_blocks": None, "source": source, "assumed": {}}
        return _fill(cascade, state, family, report)
    marked = dict(_marked_sites(state, family))  # norm's name -> (its kind, block)
    arch, norm = _identify(state, family, arch, norm, marked)
    assumed: dict[str, Any] = {}
    if norm == "un":
        assumed |= {option: _NORMS["un"][1][option] for option in ("warmup", "filtration")}
    if family == "vit_norm":
        norm_blocks = _count_blocks(marked, norm_blocks, assumed)
    elif norm_blocks is not None:
        raise ValueError(
            f"{arch}: norm_blocks is a matter of vit_norm_* models; here the norms' places are fixed. Leave it out"
        )
    if qk_scale is not None and family != "t2t":
        raise ValueError(f"{arch}: qk_scale is a matter of T2T-ViT; the models of the DTN release have head_dim ** -0.5")

    with torch.device("meta"):  # every number comes from the checkpoint, none from an initialiser
        model = _build(state, _ARCHS[arch], arch, norm, norm_blocks, qk_scale)
    report = {"arch": arch, "norm": norm, "norm_blocks": norm_blocks, "source": source, "assumed": assumed}
    return _fill(model, state, family, report)


def _fill(model: nn.Module, state: State, family: str, report: dict[str, Any]) -> nn.Module:
    """A model without memory gets the release's numbers and says what was done."""
    values, renamed, dropped = _translate(model, state, family, report["arch"], report["norm"])
    dtype = torch.promote_types(next(v.dtype for v in values.values() if v.is_floating_point()), torch.float32)
    model = model.to(dtype).to_empty(device="cpu")
    for module in model.modules():
        if isinstance(module, (Upsample, SmoothedNorm)):  # some of their numbers are no part of a checkpoint
            module.reset_parameters()
    model.load_state_dict(values, strict=True)
    model.import_report = {**report, "dropped": dropped, "renamed": renamed}  # type: ignore[assignment]
    return model.eval()


def _unwrap(checkpoint: Mapping[str, Any], ema: bool) -> tuple[State, str | None]:
    """The flat state dict inside a checkpoint, and the entry it was found under."""
    plain, averaged = ("state_dict", "model", "model_state_dict"), ("state_dict_ema", "model_ema")
    source: str | None = None
    entries = [name for name in (averaged if ema else plain + averaged) if isinstance(checkpoint.get(name), Mapping)]
    if ema and not entries:
        raise ValueError(f"no averaged weights: the checkpoint has none of {', '.join(averaged)} among {_some(checkpoint)}")
    if entries:
        source = entries[0]
        checkpoint = checkpoint[source]
    state = {re.sub(r"^(module\.)+", "", str(name)): value for name, value in checkpoint.items()}
    strange = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if strange or not state:
        raise ValueError(f"not a state dict: {_some(strange) or 'nothing'} where tensors were expected")
    return state, source


def _family(state: State) -> str:
    if is_dvt(state):
        return "dvt"
    marks = {
        "t2t": "tokens_to_token.",
        "vit": "transformer.layers.",
        "pvt": "patch_embed1.",
        "vit_norm": "blocks.",
    }
    for family, start in marks.items():
        if any(name.startswith(start) for name in state):
            return family
    raise ValueError(f"no release is known whose keys look like {_some(state)}; known models: {', '.join(_ARCHS)}")


def _marked_sites(state: State, family: str) -> Iterator[tuple[str, tuple[str, int]]]:
    """(norm's name, (its kind, block)) of every norm whose keys show that it is not LayerNorm or one that looks alike."""
    below: dict[str, tuple[int, set[str]]] = {}
    for name in state:
        if found := _SITES[family].fullmatch(name):
            below.setdefault(found[1], (int(found[2]), set()))[1].add(found[3])
    for site, (block, tails) in below.items():
        for mark, kind in _MARKS.items():
            if mark in tails:
                yield site, (kind, block)
                break


def _identify(
    state: State, family: str, arch: str | None, norm: str | None, marked: dict[str, tuple[str, int]]
) -> tuple[str, str]:
    """The one architecture and norm that fit keys and shapes, or an error that lists the candidates."""
    width, depth, found = _read_sizes(state, family)
    of_family = {name: one.sizes for name, one in _ARCHS.items() if one.family == family}
    heads = {len(state[key]) for site in marked if (key := f"{site}.var_norm_weight") in state and family != "pvt"}
    archs = [
        name
        for name, sizes in of_family.items()
        if sizes.get("embed_dim", width) == width
        and sizes.get("depth", sizes.get("depths")) == depth
        and sizes.get("tokens", found) == found
        and (not heads or heads == {sizes["heads"]})
    ]
    if not archs and arch in of_family:
        archs = [arch]  # incomplete or foreign: the keys will be listed
    if not archs:
        seen = f"width {width}, depth {depth}" + (f", {', '.join(map(str, sorted(heads)))} heads" if heads else "")
        raise ValueError(f"keys like those of {', '.join(of_family)}, but none of them has {seen} as this state dict")
    if arch is not None and arch not in archs:
        raise ValueError(f"keys and shapes are not those of {arch}; they fit {' or '.join(archs)}")

    kinds = {kind for kind, _ in marked.values()}
    if kinds == {"dtn", "dtn_var"}:
        kinds = {"dtn"}  # keys are missing, and will be listed
    if len(kinds) > 1:
        raise ValueError(f"norms of different kinds in one state dict: {', '.join(sorted(kinds))}")
    norms = [*kinds, *(["dtn_pool"] if kinds == {"dtn"} else [])] or list(_ALIKE)
    norms = [name for name in norms if name in _FAMILY_NORMS[family]]
    if not norms:
        raise ValueError(
            f"the keys hold the norm {kinds.pop()!r}; models like {archs[0]} have {', '.join(_FAMILY_NORMS[family])}"
        )
    if norm is not None and norm not in norms:
        raise ValueError(f"the keys are not those of norm={norm!r} in {' or '.join(archs)}; they fit {' or '.join(norms)}")
    if norm is None and len(norms) > 1 and "dtn" in norms:
        # Both hold the same keys and are the same layer up to 14x14; beyond, only the pooled one runs.
        norms = ["dtn_pool" if "pos_embed" in state and state["pos_embed"].shape[1] > 14**2 else "dtn"]

    unclear = {
        name: found for name, given, found in (("arch", arch, archs), ("norm", norm, norms)) if given is None and len(found) > 1
    }
    if unclear:
        wanted = "; ".join(f"{name}= one of {', '.join(map(repr, found))}" for name, found in unclear.items())
        raise ValueError(f"keys and shapes fit several models that compute different things. Please say {wanted}")
    return arch or archs[0], norm or norms[0]


def _read_sizes(state: State, family: str) -> tuple[int | None, Any, str]:
    """Width, depth (PVT: of each stage) and tokenizer that the keys show."""
    ends = ("cls_token", "norm.weight", "mlp_head.0.weight", "head.weight", "mlp_head.1.weight")
    width = next((state[key].shape[-1] for key in ends if key in state), None)
    tokenizer = "transformer" if any(name.startswith("tokens_to_token.attention1.attn") for name in state) else "performer"

    def depth(start: str) -> int:
        blocks = (re.match(rf"{start}\.(\d+)\.(0\.|1\.|attn\.|mlp\.|norm)", name) for name in state)
        return 1 + max((int(block[1]) for block in blocks if block), default=-1)

    if family == "pvt":
        return width, tuple(depth(f"block{stage}") for stage in (1, 2, 3, 4)), tokenizer
    return width, depth(r"transformer\.layers" if family == "vit" else "blocks"), tokenizer


def _count_blocks(marked: dict[str, tuple[str, int]], given: int | None, assumed: dict[str, Any]) -> int:
    if marked:
        read = 1 + max(block for _, block in marked.values())
        if given not in (None, read):
            raise ValueError(f"norm_blocks={given} was given, but the keys show the norm in the first {read} blocks")
        return read
    if given is None:
        assumed["norm_blocks"] = given = _DEFAULT_NORM_BLOCKS
    if not 0 <= given <= _DEPTH:
        raise ValueError(f"norm_blocks={given}: the class token enters before block 0 to {_DEPTH - 1}, or never ({_DEPTH})")
    return given


def _build(state: State, arch: _Arch, name: str, norm: str, norm_blocks: int | None, qk_scale: float | None) -> nn.Module:
    family = arch.family
    head = state.get("mlp_head.1.weight" if family == "vit" else "head.weight")
    positions = {"vit": "pos_embedding", "pvt": "pos_embed1"}.get(family, "pos_embed")
    patches = {"vit": "to_patch_embedding.1.weight", "pvt": "patch_embed1.proj.weight"}.get(family, "patch_embed.proj.weight")
    # Defaults where a key is missing: the error will list it.
    patch = 4 if family == "pvt" else 16
    if patches in state:
        patch = _square(name, patches, state[patches].shape[1] // 3) if family == "vit" else state[patches].shape[-1]
    grid = 56 if family == "pvt" else 14
    if positions in state:
        grid = _square(name, positions, state[positions].shape[1] - (family in ("vit", "t2t")))
    ours, options = _NORMS[norm]
    shared: dict[str, Any] = {
        "num_classes": 1000 if head is None else head.shape[0],
        "norm": ours,
        "norm_options": dict(options),
    }
    shared |= arch.sizes
    if family == "t2t":
        t2t = T2TVisionTransformer(img_size=16 * grid, qk_scale=qk_scale, **shared | {"norm": "ln", "norm_options": {}})
        if norm == "un":
            _normalise_all_by_un(t2t, state, options)
        return t2t
    if family == "pvt":
        return PyramidVisionTransformer(img_size=patch * grid, patch_size=patch, **shared)
    depth = arch.sizes["depth"]
    if family == "vit":
        place: dict[str, Any] = {"class_token": "start", "norm_sites": "attn", "norm_blocks": depth}
    else:
        place = {"class_token": "late", "norm_blocks": norm_blocks}
        if norm == "dtn_pool":
            shared["norm_options"]["pool"] = released_pool((grid, grid))
        if norm_blocks == depth:
            place["class_token"] = "none"
    model = VisionTransformer(img_size=patch * grid, patch_size=patch, **place, **shared)
    if norm_blocks == depth:
        # Then the release never adds its class token, and classifies the first patch instead.
        model.global_pool = "token"
    return model


def _normalise_all_by_un(model: nn.Module, state: State, options: dict[str, Any]) -> None:
    """In place: every norm, each with the windows that its buffers show."""
    for path, norm in [(path, module) for path, module in model.named_modules() if isinstance(module, Norm)]:
        buffers = (state.get(f"{path}.{name}") for name in ("buffer_x2", "buffer_gz"))
        window = tuple(4 if buffer is None else len(buffer) for buffer in buffers)
        model.set_submodule(path, make_norm("un", norm.dim, norm.heads, {**options, "window": window}))


def _square(name: str, key: str, count: int) -> int:
    side = math.isqrt(count)
    if side * side != count or not count:
        raise ValueError(f"{name}: {key} holds {count} places, which are not those of a square")
    return side


def _translate(model: nn.Module, state: State, family: str, arch: str, norm: str) -> tuple[State, dict[str, str], list[str]]:
    """Our state dict filled from theirs; their names -> ours where they differ; their keys without effect."""
    values: State = {}
    renamed: dict[str, str] = {}
    wrong, missing = [], []
    used = set()
    for ours, wanted in model.state_dict().items():
        theirs, transform = _source(ours, model.get_submodule(ours.rpartition(".")[0]), family)
        if theirs not in state:
            missing.append(theirs)
            continue
        used.add(theirs)
        value = transform(state[theirs])
        if value.shape != wanted.shape:
            wrong.append(f"{theirs} is {tuple(state[theirs].shape)}, for {ours} {tuple(wanted.shape)}")
            continue
        values[ours] = value
        if theirs != ours:
            renamed[theirs] = ours
    rest = [name for name in state if name not in used]
    dropped = [name for name in rest if _DROPPED.fullmatch(name) or (name == "cls_token" and "cls_token" not in values)]
    unknown = [name for name in rest if name not in dropped]
    if wrong or missing or unknown:
        problems = {"missing": missing, "unknown": unknown, "of another shape": wrong}
        text = "; ".join(f"{len(names)} {what}: {', '.join(names)}" for what, names in problems.items() if names)
        raise ValueError(f"the state dict is not one of {arch} with norm {norm!r}. Keys {text}")
    return values, renamed, dropped


def _source(ours: str, owner: nn.Module, family: str) -> tuple[str, Transform]:
    """The release's key that holds our parameter `ours` of module `owner`, and how its value becomes ours."""
    if family == "dvt":
        return released_name(ours), _as_is
    path, _, tail = ours.rpartition(".")
    transform: Transform = _as_is
    for norm, keys in _NORM_KEYS.items():
        if isinstance(owner, norm_class_of(norm)):
            tail, transform = keys.get(tail, (tail, _as_is))
    theirs = f"{path}.{tail}" if path else tail
    if family == "vit":
        if ours == "patch_embed.proj.weight":
            transform = _patches
        theirs = next(re.sub(pattern, name, theirs) for pattern, name in _VIT_KEYS if re.fullmatch(pattern, theirs))
    return theirs, transform


def _some(names: Mapping[str, Any] | list[str], most: int = 5) -> str:
    shown = ", ".join(list(names)[:most])
    return shown + (f", ... ({len(names)} in all)" if len(names) > most else "")
