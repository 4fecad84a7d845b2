"""A family of released models: those whose state dicts have keys of one kind, and how such a state dict becomes our model."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from .norms import NORMS, Transform

State = dict[str, Tensor]


@dataclass(frozen=True)
class Wanted:
    """The model a state dict holds: names as in the release, `sizes` as options of ours."""

    arch: str
    sizes: Mapping[str, Any]
    norm: str
    norm_blocks: int | None = None
    qk_scale: float | None = None


@dataclass(frozen=True)
class Family:
    """Facts about the models of a family.

    Attributes:
        mark: the beginning of a key that no other family has.
        archs: the release's name of each model -> options of our model.
        norms: the release's names of the norms its models come with.
        sites: keys below a norm that can be replaced: its name, its block, the rest.
        depth: the depth that keys show; of each stage if there are stages.
        build: our model, without numbers. Where a key is missing it takes a default: the error will list the key.
        key: our name of a parameter -> the release's. Names below a norm are translated before.
        transforms: our name of a parameter -> how its value becomes ours.
    """

    mark: str
    archs: Mapping[str, Mapping[str, Any]]
    norms: tuple[str, ...]
    sites: re.Pattern[str]
    depth: Callable[[State], Any]
    build: Callable[[State, Wanted], nn.Module]
    key: Callable[[str], str] = str
    transforms: Mapping[str, Transform] = field(default_factory=dict)


def blocks_below(state: State, start: str) -> int:
    """One more than the largest index of a block: `start.3.norm1.weight` shows four."""
    blocks = (re.match(rf"{start}\.(\d+)\.(0\.|1\.|attn\.|mlp\.|norm)", name) for name in state)
    return 1 + max((int(block[1]) for block in blocks if block), default=-1)


def shared_options(state: State, wanted: Wanted, head: str) -> dict[str, Any]:
    """Options of every model: classes, by the weight of its head, norm, sizes."""
    ours, options = NORMS[wanted.norm]
    classes = state[head].shape[0] if head in state else 1000
    return {"num_classes": classes, "norm": ours, "norm_options": dict(options), **wanted.sizes}


def side(state: State, wanted: Wanted, positions: str, default: int, prefix: int = 0) -> int:
    """Rows, and columns, of the square grid that positions belong to."""
    return square(wanted.arch, positions, state[positions].shape[1] - prefix) if positions in state else default


def square(arch: str, key: str, count: int) -> int:
    root = math.isqrt(count)
    if root * root != count or not count:
        raise ValueError(f"{arch}: {key} holds {count} places, which are not those of a square")
    return root
