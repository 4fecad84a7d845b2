"""Checkpoints of the DVT release (arXiv 2105.15075): which cascade of ours they hold, and under which names.

The release has three exits under fixed names, for images of 224 pixels. Model, number of classes and kind of reuse are read
from keys and shapes.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..cascade.entries import CONV_SPLITS, DVT_SIZES, T2T_SPLITS
from ..cascade.model import Cascade
from ..cascade.options import Reuse

State = Mapping[str, Tensor]

EXITS = ("less_less_token", "less_token", "normal_token")
# Names below an exit, ours -> theirs; others are the same.
_KEYS = (
    (r"tokenizer\.proj\.(.+)", r"patch_embed.proj.\1"),
    (r"tokenizer\.(.+)", r"tokens_to_token.\1"),
    (r"(.+)\.feature_reuse\.norm\.(.+)", r"\1.feature_resuse_mlp.0.\2"),
    (r"(.+)\.feature_reuse\.mlp\.(.+)", r"\1.feature_resuse_mlp.1.\2"),
    (r"relation_reuse\.expand\.(.+)", r"relation_reuse_conv.0.\1"),
    (r"relation_reuse\.reduce\.(.+)", r"relation_reuse_conv.2.\1"),
)
# Entries of a released file besides weights: cumulative GMACs and accuracies of the exits, and for each of 59 budgets its
# thresholds, its GMACs and its accuracy.
_NUMBERS = ("flops", "anytime_classification", "dynamic_threshold", "budgeted_batch_classification")


def is_dvt(state: State) -> bool:
    return any(name.partition(".")[0] in EXITS for name in state)


def build_dvt(state: State, arch: str | None) -> tuple[Cascade, str]:
    """The cascade that keys and shapes describe, and its name."""
    blocks = (re.match(r"\w+\.blocks\.(\d+)\.", name) for name in state)
    splits = CONV_SPLITS if any(".patch_embed." in name for name in state) else T2T_SPLITS
    dim = _last_size(state, "cls_token", "norm.weight", "head.weight")
    depth = 1 + max((int(block[1]) for block in blocks if block), default=-1)
    names = [
        name
        for name, (tokens, sizes) in DVT_SIZES.items()
        if (tokens.splits, sizes.embed_dim, sizes.depth) == (splits, dim, depth)
    ]
    if not names or arch not in (None, *names):
        raise ValueError(
            f"keys like those of {', '.join(DVT_SIZES)}, but this state dict has exits of {depth} blocks with {dim} channels, "
            f"which are not those of {arch or 'any of them'}"
        )
    heads = [state[key] for exit in EXITS if (key := f"{exit}.head.bias") in state]
    tokens, sizes = DVT_SIZES[names[0]]
    reuse = Reuse(
        feature=any(".feature_resuse_mlp." in name for name in state),
        relation=any(".relation_reuse_conv." in name for name in state),
    )
    cascade = Cascade(tokens=tokens, blocks=sizes, reuse=reuse, num_classes=len(heads[0]) if heads else 1000)
    return cascade, names[0]


def released_name(ours: str) -> str:
    """The release's key for a name in our state dict: exits.1.blocks.0.norm1.weight -> less_token.blocks.0.norm1.weight."""
    _, exit, tail = ours.split(".", 2)
    theirs = next((re.sub(pattern, name, tail) for pattern, name in _KEYS if re.fullmatch(pattern, tail)), tail)
    return f"{EXITS[int(exit)]}.{theirs}"


def released_numbers(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Costs, accuracies and thresholds that the file brings along, as plain lists."""
    return {name: _plain(checkpoint[name]) for name in _NUMBERS if name in checkpoint}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _last_size(state: State, *tails: str) -> int | None:
    return next((state[key].shape[-1] for exit in EXITS for tail in tails if (key := f"{exit}.{tail}") in state), None)
