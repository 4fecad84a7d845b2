"""The start of a swapped norm: equal to the old norm, near it, or fresh."""

import warnings

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
    """Set the mixture for "identity" and "near"; "fresh" is what the constructor made."""
    if start != "fresh" and norm.starts_as is not None:
        norm.start_at(1.0 if start == "identity" else NEAR)


def unfreeze_norms(model: nn.Module) -> int:
    """Deprecated: an identity start learns from the first step. Thaws mixing parameters that you froze; counts their norms."""
    warnings.warn(
        'unfreeze_norms is no longer needed: norms swapped in with start="identity" learn from the first step. To hold them '
        "for a while, set requires_grad of their mixing_parameters yourself",
        DeprecationWarning,
        stacklevel=2,
    )
    count = 0
    for norm in (module for module in model.modules() if isinstance(module, Norm)):
        named = (getattr(norm, name, None) for name in norm.mixing_parameters)
        frozen = [parameter for parameter in named if isinstance(parameter, nn.Parameter) and not parameter.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(True)
        count += bool(frozen)
    return count
