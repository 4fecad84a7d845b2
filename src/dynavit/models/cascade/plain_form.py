"""Weights of timm's vision transformers in the form of a cascade's exit: the same function, of fewer parts.

    LayerScale    its factors go into the layer before them, the last one of attention and of the MLP (DeiT III, DINOv2)
    class token   without a position of its own (DeiT III, FlexiViT) has the position 0

What no exit can compute is refused: register and distillation tokens, a norm before the blocks (CLIP), answers from a mean.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

SCALED = {"ls1": "attn.proj", "ls2": "mlp.fc2"}
_FOREIGN = {
    "reg_token": "register tokens",
    "dist_token": "a distillation token",
    "norm_pre.weight": "a norm before its blocks",
    "fc_norm.weight": "a mean of its patches as its answer",
}


def foreign_part(weights: Mapping[str, Tensor]) -> str | None:
    """What stands between this vision transformer and an exit, in words; None if nothing does."""
    if "cls_token" not in weights:
        return "no class token"
    return next((what for name, what in _FOREIGN.items() if name in weights), None)


@torch.no_grad()
def plain_form(weights: Mapping[str, Tensor], prefix: int) -> dict[str, Tensor]:
    """Without LayerScale, and with positions (1, 1 + patches, c) where only `prefix`, none or one, stood before the patches."""
    plain = dict(weights)
    for name in weights:
        block, _, part = name.removesuffix(".gamma").rpartition(".")
        if part in SCALED and name.endswith(".gamma"):
            gamma, layer = plain.pop(name), f"{block}.{SCALED[part]}"
            plain[f"{layer}.weight"] = gamma[:, None] * plain[f"{layer}.weight"]
            if f"{layer}.bias" in plain:
                plain[f"{layer}.bias"] = gamma * plain[f"{layer}.bias"]
    if prefix == 0:
        positions = plain["pos_embed"]
        plain["pos_embed"] = torch.cat([torch.zeros_like(positions[:, :1]), positions], 1)
    return plain
