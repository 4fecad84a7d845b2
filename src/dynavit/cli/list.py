"""`dynavit list`: what there is to choose from."""

import inspect
import json as json_format
from dataclasses import asdict, dataclass
from typing import Any

from .show import print_table

DIM, HEADS = 192, 4  # the size at which parameters are counted: one block of a tiny vision transformer


@dataclass(frozen=True)
class NormRow:
    name: str
    description: str
    options: dict[str, Any]  # its own, with their defaults; the shared ones are the same for every norm
    parameters: int


def list_norms(json: bool = False) -> None:
    """List every normaliser, what it is, its own options and its size.

    Every normaliser also takes heads, eps, affine, device and dtype. In Python:
    `dynavit.create_norm(name, dim, heads=..., option=...)`.

    Args:
        json: print JSON instead of a table.
    """
    rows = norm_rows()
    if json:
        print(json_format.dumps([asdict(row) for row in rows], indent=2, default=str))
        return
    print_table(
        f"Normalisers (parameters counted at C={DIM}, H={HEADS})",
        ["name", "what it is", "own options", "parameters"],
        [[row.name, row.description, _spelled(row.options), f"{row.parameters:,}"] for row in rows],
    )


def norm_rows() -> list[NormRow]:
    """What the table shows, as data."""
    from ..norms import Norm, create_norm
    from ..norms import list_norms as names
    from ..norms.factory import norm_class_of

    shared = inspect.signature(Norm).parameters
    rows = []
    for name in names():
        norm_class = norm_class_of(name)
        own = {
            option: parameter.default
            for option, parameter in inspect.signature(norm_class).parameters.items()
            if option not in shared and parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        size = sum(parameter.numel() for parameter in create_norm(name, DIM, heads=HEADS).parameters())
        rows.append(NormRow(name, (inspect.getdoc(norm_class) or "").partition("\n")[0], own, size))
    return rows


def _spelled(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items()) or "-"
