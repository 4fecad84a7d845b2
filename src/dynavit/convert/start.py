"""The start of a swapped norm: equal to the old norm, near it, or fresh."""

from collections.abc import Iterator

import torch
from torch import nn

from ..norms import Norm

STARTS = ("identity", "near", "fresh")
NEAR = 0.98  # share of the old norm in the mixture


def choose_start(start: str | None, name: str, norm: Norm, old_kinds: set[str]) -> str:
    """Check a start for `norm`, which is called `name`; None takes the nearest one to the old norms that the norm can have."""
    if start is not None and start not in STARTS:
        raise ValueError(f"start= is one of {', '.join(map(repr, STARTS))}; got {start!r}")
    if norm.starts_as is not None and old_kinds == {norm.starts_as}:
        return start or ("near" if norm.mixing_parameters else "identity")
    if start in (None, "fresh"):
        return "fresh"
    if norm.starts_as is not None:
        was = " and ".join(sorted(old_kinds)) or "nothing"
        raise ValueError(
            f"start={start!r}: {name} can start as a {norm.starts_as}, but the norms to replace are {was}; use start='fresh'"
        )
    raise ValueError(
        f"start={start!r}: {name} has no setting at which it equals LayerNorm. What fits: start='fresh' for {name}, or "
        "'dtn' or 'sn', which can start from LayerNorm"
    )


@torch.no_grad()
def set_start(norm: Norm, start: str) -> None:
    """Set the mixture for "identity", where it is frozen, and "near"; "fresh" is what the constructor made."""
    if start == "fresh" or norm.starts_as is None:
        return
    norm.start_at(1.0 if start == "identity" else NEAR)
    if start == "identity":
        for parameter in _mixture(norm):
            parameter.requires_grad_(False)


@torch.no_grad()
def unfreeze_norms(model: nn.Module, weight: float = NEAR) -> int:
    """Let norms that were swapped in with start="identity" learn; the number of them is returned.

    A mixing weight of exactly 1 has no slope (its logit would never move), so it is set to `weight` first.
    """
    count = 0
    for module in model.modules():
        if not isinstance(module, Norm) or module.starts_as is None:
            continue
        frozen = [parameter for parameter in _mixture(module) if not parameter.requires_grad]
        if frozen:
            module.start_at(weight)
            for parameter in frozen:
                parameter.requires_grad_(True)
            count += 1
    return count


def _mixture(norm: Norm) -> Iterator[nn.Parameter]:
    named = (getattr(norm, name, None) for name in norm.mixing_parameters)
    return (parameter for parameter in named if isinstance(parameter, nn.Parameter))
