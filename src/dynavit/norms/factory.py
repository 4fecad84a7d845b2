"""Names to normalisers.

    @register_norm("mine")
    class Mine(Norm):
        \"\"\"One line about it, which `dynavit list norms` shows.\"\"\"

        def normalise(self, x, grid, mask): ...

`create_norm("mine", 192)` builds it, and every place that takes the name of a norm takes this one. Installed packages offer
norms as entry points of the group "dynavit.norms".
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

from ..common.registry import Registry, nearest_match_error
from .contract import Norm

NORMS: Registry[type[Norm]] = Registry("norm", entry_points="dynavit.norms")

NormClass = TypeVar("NormClass", bound=type[Norm])


def register_norm(name: str) -> Callable[[NormClass], NormClass]:
    """A decorator that registers a subclass of `Norm` under `name`; ValueError says what the class lacks."""

    def keep(norm_class: NormClass) -> NormClass:
        check_norm_class(name, norm_class)
        return NORMS.register(name)(norm_class)

    return keep


def create_norm(name: str, dim: int, **options: Any) -> Norm:
    """Build a registered normaliser: `create_norm("dtn", 432, heads=9)`.

    >>> create_norm("rms", 8)
    RMSNorm(8, heads=1, eps=1e-05)
    """
    norm_class = norm_class_of(name)
    known = options_of(norm_class)
    for option in options:
        if option not in known:
            raise nearest_match_error(f"option of norm {name!r}", option, known)
        if isinstance(options[option], float) and not math.isfinite(options[option]):
            raise ValueError(f"option {option} of norm {name!r} is {options[option]}; it has to be a finite number")
    return norm_class(dim, **options)


def norm_class_of(name: str) -> type[Norm]:
    norm_class = NORMS[name]
    if NORMS.guest(name) is not None:  # one of an entry point has not been checked
        check_norm_class(name, norm_class)
    return norm_class


def folds(name: str) -> bool:
    """True if the norm is an affine map at evaluation, so that it can go into the linear layers around it."""
    return hasattr(norm_class_of(name), "affine_map")


def list_norms() -> list[str]:
    """Names that `create_norm` takes, in alphabetical order."""
    return NORMS.names()


def options_of(norm_class: type[Norm]) -> dict[str, inspect.Parameter]:
    """The options of a norm, all but `dim`: its own and, through `**shared`, those of the contract."""
    own, shared = inspect.signature(norm_class).parameters, inspect.signature(Norm).parameters
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {key: value for key, value in {**shared, **own}.items() if key != "dim" and value.kind in named}


def check_norm_class(name: str, norm_class: Any) -> None:
    """Raise ValueError unless models can build and seat this class."""
    if not isinstance(norm_class, type) or not issubclass(norm_class, Norm):
        raise ValueError(f"the norm {name!r} is to be a subclass of dynavit.Norm; got {norm_class!r}")
    who = f"the norm {name!r}: {norm_class.__name__}"
    own, shared = inspect.signature(norm_class).parameters, inspect.signature(Norm).parameters
    more = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in own.values())
    missing = [key for key in shared if key not in own and (key == "dim" or not more)]
    if missing:
        raise ValueError(
            f"{who} takes no {', '.join(missing)}; every norm takes {', '.join(shared)}. Write "
            "`def __init__(self, dim, **shared)` and `super().__init__(dim, **shared)`, own options in between"
        )
    required = [
        key
        for key, parameter in own.items()
        if key != "dim" and parameter.default is parameter.empty and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    if required:
        raise ValueError(f"{who} cannot be built without {', '.join(required)}; own options of a norm have defaults")
    if all(getattr(norm_class, method) is getattr(Norm, method) for method in ("normalise", "transform", "forward")):
        raise ValueError(f"{who} does not say how it normalises; write `def normalise(self, x, grid, mask)`")
    _check_facts(who, norm_class)


def _check_facts(who: str, norm_class: type[Norm]) -> None:
    if not isinstance(norm_class.dimensions, tuple) or not norm_class.dimensions or not {1, 2} >= set(norm_class.dimensions):
        raise ValueError(f"{who} has dimensions = {norm_class.dimensions!r}; it is (2,), (1,) or (1, 2)")
    if norm_class.starts_as not in (None, "ln", "rms"):
        raise ValueError(f"{who} has starts_as = {norm_class.starts_as!r}; it is 'ln', 'rms' or None")
    if norm_class.mixing_parameters and norm_class.start_at is Norm.start_at:
        raise ValueError(f"{who} has mixing_parameters, but nothing sets them; write `def start_at(self, share)`")
    if not norm_class.needs_grid and "num_prefix_tokens" in options_of(norm_class):
        raise ValueError(
            f"{who} takes num_prefix_tokens, which is known only together with the grid; declare `needs_grid = True`"
        )
