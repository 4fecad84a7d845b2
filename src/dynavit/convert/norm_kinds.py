"""The kinds of norm that a model has, by the names of `list_norms`."""

from collections import Counter

from torch import nn

from ..norms import Norm
from ..norms.factory import NORMS
from .sites import read_norm


def norm_kinds(model: nn.Module) -> Counter[str]:
    """How often each kind stands in a model; torch's own and other people's norms have the name of ours that does the same."""
    kinds: Counter[str] = Counter()
    ours = [f"{path}." for path, module in model.named_modules() if isinstance(module, Norm)]
    for path, module in model.named_modules():
        if not path.startswith(tuple(ours)) and (kind := _kind(module)) is not None:  # parts of a norm belong to it
            kinds[kind] += 1
    return kinds


def _kind(module: nn.Module) -> str | None:
    if isinstance(module, Norm):
        return NORMS.name_of(type(module)) or type(module).__name__
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return "bn"
    if isinstance(module, nn.GroupNorm):
        return "gn"
    known = read_norm(module)
    return None if known is None else known.kind
