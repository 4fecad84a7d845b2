"""The one model that keys and shapes of a released state dict describe, or the candidates if they do not decide."""

import re

from .family import Family, State
from .norms import ALIKE, MARKS

Marked = dict[str, tuple[str, int]]  # a norm's name -> its kind and its block


def marked_sites(state: State, family: Family) -> Marked:
    """Every norm whose keys show that it is not LayerNorm, or one that looks like it."""
    below: dict[str, tuple[int, set[str]]] = {}
    for name in state:
        if found := family.sites.fullmatch(name):
            below.setdefault(found[1], (int(found[2]), set()))[1].add(found[3])
    kinds = {site: next((kind for mark, kind in MARKS.items() if mark in tails), None) for site, (_, tails) in below.items()}
    return {site: (kind, below[site][0]) for site, kind in kinds.items() if kind is not None}


def identify(state: State, family: Family, arch: str | None, norm: str | None, marked: Marked) -> tuple[str, str]:
    """The one architecture and norm that fit keys and shapes, or an error that lists the candidates."""
    archs = _fitting_archs(state, family, arch, marked)
    norms = _fitting_norms(state, family, norm, marked, archs)
    unclear = {
        name: found for name, given, found in (("arch", arch, archs), ("norm", norm, norms)) if given is None and len(found) > 1
    }
    if unclear:
        wanted = "; ".join(f"{name}= one of {', '.join(map(repr, found))}" for name, found in unclear.items())
        raise ValueError(f"keys and shapes fit several models that compute different things. Please say {wanted}")
    return arch or archs[0], norm or norms[0]


def _fitting_archs(state: State, family: Family, arch: str | None, marked: Marked) -> list[str]:
    width, depth, tokens = _width(state), family.depth(state), _tokenizer(state)
    # Where heads are one number for all blocks, DTN shows it.
    one_number = all(isinstance(sizes["heads"], int) for sizes in family.archs.values())
    heads = {len(state[key]) for site in marked if one_number and (key := f"{site}.var_norm_weight") in state}
    archs = [
        name
        for name, sizes in family.archs.items()
        if sizes.get("embed_dim", width) == width
        and sizes.get("depth", sizes.get("depths")) == depth
        and sizes.get("tokens", tokens) == tokens
        and (not heads or heads == {sizes["heads"]})
    ]
    if not archs and arch is not None and arch in family.archs:
        archs = [arch]  # incomplete or foreign: the keys will be listed
    if not archs:
        seen = f"width {width}, depth {depth}" + (f", {', '.join(map(str, sorted(heads)))} heads" if heads else "")
        raise ValueError(f"keys like those of {', '.join(family.archs)}, but none of them has {seen} as this state dict")
    if arch is not None and arch not in archs:
        raise ValueError(f"keys and shapes are not those of {arch}; they fit {' or '.join(archs)}")
    return archs


def _fitting_norms(state: State, family: Family, norm: str | None, marked: Marked, archs: list[str]) -> list[str]:
    kinds = {kind for kind, _ in marked.values()}
    if kinds == {"dtn", "dtn_var"}:
        kinds = {"dtn"}  # keys are missing, and will be listed
    if len(kinds) > 1:
        raise ValueError(f"norms of different kinds in one state dict: {', '.join(sorted(kinds))}")
    norms = [*kinds, *(["dtn_pool"] if kinds == {"dtn"} else [])] or list(ALIKE)
    norms = [name for name in norms if name in family.norms]
    if not norms:
        raise ValueError(f"the keys hold the norm {kinds.pop()!r}; models like {archs[0]} have {', '.join(family.norms)}")
    if norm is not None and norm not in norms:
        raise ValueError(f"the keys are not those of norm={norm!r} in {' or '.join(archs)}; they fit {' or '.join(norms)}")
    if norm is None and len(norms) > 1 and "dtn" in norms:
        # Both hold the same keys and are the same layer up to 14x14; beyond, only the pooled one runs.
        norms = ["dtn_pool" if "pos_embed" in state and state["pos_embed"].shape[1] > 14**2 else "dtn"]
    return norms


def _width(state: State) -> int | None:
    ends = ("cls_token", "norm.weight", "mlp_head.0.weight", "head.weight", "mlp_head.1.weight")
    return next((state[key].shape[-1] for key in ends if key in state), None)


def _tokenizer(state: State) -> str:
    return "transformer" if any(re.match(r"tokens_to_token\.attention1\.attn", name) for name in state) else "performer"
