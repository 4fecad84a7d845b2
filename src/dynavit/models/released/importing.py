"""`import_released`: a state dict of somebody's release becomes a model of ours that gives the same logits."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...common.registry import nearest_match_error
from ..cascade.entries import DVT_SIZES
from .dtn import DEFAULT_NORM_BLOCKS, DEPTH, PVT, VIT, VIT_NORM
from .dvt import build_dvt, is_dvt, released_name, released_numbers
from .family import Family, State, Wanted
from .fill import fill
from .identify import Marked, identify, marked_sites
from .norms import NORMS
from .t2t import T2T

FAMILIES = (T2T, VIT, PVT, VIT_NORM)  # the last one's mark is also in others
_ARCHS = [*(arch for family in FAMILIES for arch in family.archs), *DVT_SIZES]


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
    The model's `import_report` says what was done: arch, norm, norm_blocks, `assumed` (defaults that no key confirms),
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
    if norm is not None and norm not in NORMS:
        raise nearest_match_error("released norm", norm, NORMS)
    state, source = _unwrap(state_dict, ema)
    report: dict[str, Any]
    if is_dvt(state):
        if norm not in (None, "layer") or norm_blocks is not None or qk_scale is not None:
            raise ValueError(
                "a DVT has norm 'layer' in all blocks and attention scaled by head_dim ** -0.5; leave the options out"
            )
        with torch.device("meta"):
            cascade, arch = build_dvt(state, arch)
        cascade.released = released_numbers(state_dict)
        report = {"arch": arch, "norm": "layer", "norm_blocks": None, "source": source, "assumed": {}}
        return fill(cascade, state, report, released_name, {})

    family = _family(state)
    marked = marked_sites(state, family)
    arch, norm = identify(state, family, arch, norm, marked)
    assumed: dict[str, Any] = {}
    if norm == "un":
        assumed |= {option: NORMS["un"][1][option] for option in ("warmup", "filtration")}
    if family is VIT_NORM:
        norm_blocks = _count_blocks(marked, norm_blocks, assumed)
    elif norm_blocks is not None:
        raise ValueError(
            f"{arch}: norm_blocks is a matter of vit_norm_* models; here the norms' places are fixed. Leave it out"
        )
    if qk_scale is not None and family is not T2T:
        raise ValueError(f"{arch}: qk_scale is a matter of T2T-ViT; the models of the DTN release have head_dim ** -0.5")
    with torch.device("meta"):  # every number comes from the checkpoint, none from an initialiser
        model = family.build(state, Wanted(arch, family.archs[arch], norm, norm_blocks, qk_scale))
    report = {"arch": arch, "norm": norm, "norm_blocks": norm_blocks, "source": source, "assumed": assumed}
    return fill(model, state, report, family.key, family.transforms)


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


def _family(state: State) -> Family:
    for family in FAMILIES:
        if any(name.startswith(family.mark) for name in state):
            return family
    raise ValueError(f"no release is known whose keys look like {_some(state)}; known models: {', '.join(_ARCHS)}")


def _count_blocks(marked: Marked, given: int | None, assumed: dict[str, Any]) -> int:
    if marked:
        read = 1 + max(block for _, block in marked.values())
        if given not in (None, read):
            raise ValueError(f"norm_blocks={given} was given, but the keys show the norm in the first {read} blocks")
        return read
    if given is None:
        assumed["norm_blocks"] = given = DEFAULT_NORM_BLOCKS
    if not 0 <= given <= DEPTH:
        raise ValueError(f"norm_blocks={given}: the class token enters before block 0 to {DEPTH - 1}, or never ({DEPTH})")
    return given


def _some(names: Mapping[str, Any] | list[str], most: int = 5) -> str:
    shown = ", ".join(list(names)[:most])
    return shown + (f", ... ({len(names)} in all)" if len(names) > most else "")
