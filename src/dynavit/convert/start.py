"""Where a swapped norm starts: at the old norm exactly, near it, or at its own beginning."""

import math
from typing import Any

import torch
from torch import nn

from ..norms import DynamicTokenNorm, Norm, ReleasedDynamicTokenNorm, SwitchableNorm

STARTS = ("identity", "near", "fresh")
NEAR = 0.98  # of LayerNorm's statistics in the mixture
# The logit of a mixing weight of 1. sigmoid(40) is 1.0 exactly in float32 and float64 (1 - 4e-18), and unlike infinity it
# survives arithmetic and file formats.
ONE = 40.0


def choose_start(start: str | None, norm: str, norm_class: type[Norm], options: dict[str, Any], old_kinds: set[str]) -> str:
    """Check a start, or take the nearest one to the old norms that exists."""
    if start is not None and start not in STARTS:
        raise ValueError(f"start= is one of {', '.join(map(repr, STARTS))}; got {start!r}")
    mixes = (
        _mixes_with_layer_norm(norm_class)
        and options.get("fixed_mean_lambda") is None
        and options.get("fixed_var_lambda") is None
    )
    same = {"ln": "ln", "rms": "rms"}.get(norm)
    if same is not None and old_kinds == {same}:
        return start or "identity"
    if mixes and old_kinds == {"ln"}:
        return start or "near"
    if start in (None, "fresh"):
        return "fresh"
    if mixes or same:
        was = " and ".join(sorted(old_kinds)) or "nothing"
        raise ValueError(
            f"start={start!r}: {norm} can start as a {same or 'ln'}, but the norms to replace are {was}; use start='fresh'"
        )
    raise ValueError(
        f"start={start!r}: {norm} has no setting at which it equals LayerNorm. What fits: start='fresh' for {norm}, or "
        "'dtn' or 'sn', which can start from LayerNorm"
    )


def set_start(norm: Norm, start: str) -> None:
    """Mixing weights for "identity" and "near"; "fresh" is what the constructor made."""
    if start == "fresh" or not _mixes_with_layer_norm(type(norm)):
        return
    set_mixing_weight(norm, 1.0 if start == "identity" else NEAR)
    if start == "identity":
        for parameter in _learned_mixture(norm):
            parameter.requires_grad_(False)


@torch.no_grad()
def set_mixing_weight(norm: nn.Module, weight: float) -> None:
    """The share of LayerNorm's statistics in the mixture, for mean and variance."""
    logit = ONE if weight == 1.0 else math.log(weight / (1 - weight))
    for parameter in (norm.mean_logit, norm.var_logit):
        if not isinstance(parameter, nn.Parameter):
            continue
        if isinstance(norm, SwitchableNorm):
            # softmax over (ln, in, bn), the rest in equal parts
            parameter.copy_(parameter.new_tensor([logit + math.log(2) if weight < 1 else 2 * ONE, 0.0, 0.0]))
        else:
            parameter.fill_(logit)


def unfreeze_norms(model: nn.Module, weight: float = NEAR) -> int:
    """Let norms that were swapped in with start="identity" learn; the number of them is returned.

    A mixing weight of exactly 1 has no slope (its logit would never move), so it is set to `weight` first.
    """
    count = 0
    for module in model.modules():
        if not isinstance(module, Norm) or not _mixes_with_layer_norm(type(module)):
            continue
        frozen = [parameter for parameter in _learned_mixture(module) if not parameter.requires_grad]
        if frozen:
            set_mixing_weight(module, weight)
            for parameter in frozen:
                parameter.requires_grad_(True)
            count += 1
    return count


def _mixes_with_layer_norm(norm_class: type[nn.Module]) -> bool:
    """Whether some setting of the mixture is LayerNorm; the released variant scales heads first, so it has none."""
    return issubclass(norm_class, SwitchableNorm) or (
        issubclass(norm_class, DynamicTokenNorm) and not issubclass(norm_class, ReleasedDynamicTokenNorm)
    )


def _learned_mixture(norm: Norm) -> list[nn.Parameter]:
    named = (getattr(norm, name, None) for name in ("mean_logit", "var_logit", "position"))
    return [parameter for parameter in named if isinstance(parameter, nn.Parameter)]
