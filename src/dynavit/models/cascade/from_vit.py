"""Weights of a cascade from those of a plain vision transformer: every exit begins as that classifier, on its own grid.

    patch_embed.proj   resampled to the exit's patches, so that a patch that is resized alike gives the same token (FlexiViT,
                       Beyer et al., CVPR 2023, arXiv 2212.08013)
    pos_embed          interpolated to the exit's grid
    blocks, norm, head taken over by every exit

Parts that only a cascade has start fresh and are silent at first: the last layer of what makes reused channels, and the last
one that mixes reused attention logits, are 0. So relations change nothing at the start. Reused channels stand beside the
token's own at a block's second norm, which then divides by a smaller deviation, sqrt(own / all) of it for tokens with mean 0;
the norm's weight makes up for that.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..conv_tokens import ConvTokens, Grid
from ..layers import resize_positions
from .exit import Exit
from .model import Cascade
from .reuse import FeatureReuse, RelationReuse, ReuseBlock

PATCHES = "patch_embed.proj"
_PLAIN = (f"{PATCHES}.weight", "pos_embed", "blocks.0.norm2.weight", "blocks.0.mlp.fc1.weight")


def is_plain_vit(weights: Mapping[str, Tensor]) -> bool:
    """Whether these are the weights of a vision transformer as of timm, with learned positions."""
    return all(name in weights for name in _PLAIN)


def exits_from_vit(cascade: Cascade, weights: Mapping[str, Tensor], grid: Grid) -> dict[str, Tensor]:
    """Weights by the cascade's names from those of a plain vision transformer, whose positions are on `grid` behind one token
    (see `plain_form`).

    What exits reuse of each other is not among them, see `reuse_names`. Heads keep the source's classes, and a depth or width
    that differs is left for the caller to find.
    """
    found: dict[str, Tensor] = {}
    for at, exit in enumerate(cascade.exits):
        assert isinstance(exit, Exit)
        found |= {f"exits.{at}.{name}": tensor for name, tensor in _exit(exit, f"exit {at + 1}", weights, grid).items()}
    return found


def reuse_names(cascade: Cascade) -> list[str]:
    """Names of the weights by which exits reuse each other, which no plain model has."""
    return [name for name in cascade.state_dict() if {"feature_reuse", "relation_reuse"} & set(name.split("."))]


@torch.no_grad()
def silence_reuse(cascade: Cascade) -> None:
    """Reused channels and relations are 0 at the start, and learn from the first step on."""
    for module in cascade.modules():
        last = {FeatureReuse: "mlp.fc2", RelationReuse: "reduce"}.get(type(module))
        for parameter in module.get_submodule(last).parameters() if last is not None else ():
            parameter.zero_()


def _exit(exit: Exit, name: str, weights: Mapping[str, Tensor], grid: Grid) -> dict[str, Tensor]:
    from timm.layers.patch_embed import resample_patch_embed

    tokenizer = exit.tokenizer
    if not isinstance(tokenizer, ConvTokens) or len(tokenizer.splits) > 1:
        raise ValueError(
            f"{name} of the cascade makes its tokens in several steps, a plain vision transformer in one; take a cascade of "
            "patches, such as dvt_deit_tiny or dvt_deit_small"
        )
    if exit.pool != "token":
        raise ValueError(
            f"a plain vision transformer answers from its class token, {name} from a mean; take tokens.pool 'token'"
        )
    own = exit.state_dict()
    found = {at: tensor for at, tensor in weights.items() if not at.startswith("patch_embed.")}
    found |= {f"tokenizer.proj.{at}": weights[f"{PATCHES}.{at}"] for at in ("weight", "bias") if f"{PATCHES}.{at}" in weights}
    kernel, size = found["tokenizer.proj.weight"], tokenizer.proj.kernel_size
    if kernel.dim() == 4 and tuple(kernel.shape[2:]) != size:
        found["tokenizer.proj.weight"] = resample_patch_embed(kernel, list(size))
    found["pos_embed"] = resize_positions(weights["pos_embed"], grid, exit.grid, prefix=1)
    for path, block in exit.blocks.named_children():
        assert isinstance(block, ReuseBlock)
        if block.feature_reuse is not None:
            _make_room(f"blocks.{path}", block.join_heads, own, found)
    return found


def _make_room(block: str, heads: int, own: Mapping[str, Tensor], found: dict[str, Tensor]) -> None:
    """Second norm and first layer of a block's MLP, with reused channels beside the token's own, joined head by head."""
    weight, bias, first = f"{block}.norm2.weight", f"{block}.norm2.bias", f"{block}.mlp.fc1.weight"
    if first not in own or first not in found or weight not in found or not found[weight].is_floating_point():
        return  # another depth, or no weights at all
    dim, joined = found[first].shape[1], own[first].shape[1]
    taken = torch.arange(joined).unflatten(0, (heads, -1))[:, : dim // heads].flatten()  # where the token's own channels go
    scale = found[weight] * math.sqrt(dim / joined)
    found[weight] = scale.new_ones(joined).index_put((taken,), scale)
    if bias in found:
        found[bias] = found[bias].new_zeros(joined).index_put((taken,), found[bias])
    wide = own[first].clone()
    if wide.shape[0] == found[first].shape[0]:
        wide[:, taken] = found[first].to(wide)
        found[first] = wide
