"""Names to normalisers."""

import inspect
from typing import Any

from ..common.registry import nearest_match_error
from .contract import Norm

_NORMS: dict[str, type[Norm]] = {}


def create_norm(name: str, dim: int, **options: Any) -> Norm:
    """Build a registered normaliser: `create_norm("dtn", 432, heads=9)`.

    >>> create_norm("rms", 8)
    RMSNorm(8, heads=1, eps=1e-05)
    """
    norm_class = norm_class_of(name)
    known = _options_of(norm_class)
    for option in options:
        if option not in known:
            raise nearest_match_error(f"option of norm {name!r}", option, known)
    return norm_class(dim, **options)


def norm_class_of(name: str) -> type[Norm]:
    if name not in _NORMS:
        raise nearest_match_error("norm", name, _NORMS)
    return _NORMS[name]


def folds(name: str) -> bool:
    """Whether the norm is an affine map at evaluation, so that it can go into the linear layers around it."""
    return hasattr(norm_class_of(name), "affine_map")


def list_norms() -> list[str]:
    """Names that `create_norm` takes, in alphabetical order."""
    return sorted(_NORMS)


def _options_of(norm_class: type[Norm]) -> dict[str, inspect.Parameter]:
    """The keyword options of a norm: its own and, through `**shared`, those of the contract."""
    own = inspect.signature(norm_class).parameters
    shared = inspect.signature(Norm).parameters
    return {
        name: parameter
        for name, parameter in {**shared, **own}.items()
        if name != "dim" and parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
