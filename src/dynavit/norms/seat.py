"""A norm for one place in a model: what the place knows goes to the norms that ask for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .contract import Norm
from .factory import create_norm, norm_class_of, options_of


@dataclass(frozen=True)
class Seat:
    """A place in a model, and what is known of its tokens.

    Attributes:
        dim: channels.
        heads: of the attention that the place belongs to.
        num_prefix_tokens: tokens in front (class, registers) that lie outside the grid.
        ndim: 2 for the tokens of an image, 1 for a sequence.
    """

    dim: int
    heads: int = 1
    num_prefix_tokens: int = 0
    ndim: int = 2


def seat_norm(name: str, seat: Seat, options: Mapping[str, Any] | None = None, **shared: Any) -> Norm:
    """Build the norm `name` for a place. `options` go before what the place says; `shared` are options of the contract."""
    if trouble := misfit(name, seat.ndim):
        raise ValueError(f"the norm {name!r} {trouble}; 'dtn' fits both")
    norm_class = norm_class_of(name)
    told: dict[str, Any] = {"heads": seat.heads}
    if norm_class.needs_grid:
        asks = options_of(norm_class)
        told |= {key: getattr(seat, key) for key in ("num_prefix_tokens", "ndim") if key in asks}
    return create_norm(name, seat.dim, **{**told, **shared, **(options or {})})


def misfit(name: str, ndim: int) -> str:
    """The reason why a norm cannot stand among tokens of an image (ndim 2) or of a sequence (1); "" if it can."""
    norm_class = norm_class_of(name)
    if not norm_class.needs_grid or ndim in norm_class.dimensions:
        return ""
    made_for, found = ("images", "a sequence") if ndim == 1 else ("sequences", "an image")
    return f"is made for {made_for}, this is {found}"
