"""Norms and attentions that can be observed in a model, found in its modules alone.

Paths are those of the bare model: wrappers (DistributedDataParallel, DataParallel, torch.compile) leave no trace in them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ...common.registry import nearest_match_error
from ...convert.sites import find_norms, heads_of, is_attention

Site = Literal["attn", "mlp", "other"]

# Attention between channels. With as many channels as tokens its weights could not be told from those between tokens.
_OVER_CHANNELS = re.compile(r"xca|crosscov|channel", re.I)


@dataclass(frozen=True, eq=False)
class NormSite:
    """A norm in a block. `site` is the part of the block that it stands in front of."""

    path: str
    norm: nn.Module
    heads: int
    site: Site
    block: str
    channels_first: bool = False


def norm_sites(model: nn.Module) -> list[NormSite]:
    """The norms of all blocks, in the model's order.

    `heads` are the norm's own; where it has none, those of its block's attention, if the channels are the attention's.
    """
    found = [item for item in find_norms(unwrapped(model)) if item.place == "block"]
    width: dict[str, int] = {}
    for item in found:
        width.setdefault(item.block, item.old.dim)
    sites = []
    for item in found:
        heads = getattr(item.module, "heads", 1)
        if heads == 1 and item.heads and item.old.dim == width[item.block] and item.old.dim % item.heads == 0:
            heads = item.heads
        site: Site = "attn" if item.site == "attn" else "mlp" if item.site == "mlp" else "other"
        path, block = bare(item.path), bare(item.block)
        sites.append(NormSite(path, item.module, heads, site, block, item.old.channels_first))
    return sites


def attention_paths(model: nn.Module) -> list[str]:
    """The attentions of a model, in its order."""
    return [bare(path) for path in attentions(unwrapped(model))]


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """Modules whose tokens attend. Of an attention inside another (a wrapper around the one that computes), the inner one."""
    found = {path: module for path, module in model.named_modules() if heads_of(module) is not None and is_attention(module)}
    return {
        path: module
        for path, module in found.items()
        if not any(other.startswith(f"{path}.") for other in found) and not _OVER_CHANNELS.search(type(module).__name__)
    }


def require(kind: str, wanted: Iterable[str], known: Iterable[str]) -> list[str]:
    """The wanted names; an unknown one is an error that lists what exists."""
    wanted, known = list(wanted), list(known)
    for name in wanted:
        if name not in known:
            raise nearest_match_error(kind, name, known)
    return wanted


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside wrappers."""
    while True:
        inner = model.module if isinstance(model, DataParallel | DistributedDataParallel) else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def bare(path: str) -> str:
    """A path without the wrappers of compiled parts."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")
