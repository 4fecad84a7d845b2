"""Options of a cascade, in three groups: its tokens, its blocks, and what exits reuse of each other.

In Python they are dataclasses. A file or a command line holds them by name, grouped or flat, which is the older form:

    create_model("dvt_vit_micro", reuse={"relation": True}, depth=6)
    create_model("dvt_vit_micro", relation_reuse=True, blocks={"depth": 6})
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from ...common.registry import nearest_match_error
from ..conv_tokens import Split, checked_splits


@dataclass(frozen=True)
class Tokens:
    """How exits make their tokens.

    Attributes:
        splits: for each exit (kernel, stride, padding) of the steps of its tokenizer. A single step is a convolution.
        kind: what several steps are: "soft" splits of T2T-ViT with a performer after each but the last, or "conv"olutions.
        width: channels between two steps.
        norm: between convolutions, such as "bn"; the norm of the blocks does not touch it. None: without.
        drop_rate: dropout of the performers.
        positions: fixed "sinusoid" over the sequence, or "learned".
        pool: what an exit answers from: its class "token", or the "mean" of the others, which may look at the class token.
    """

    splits: tuple[tuple[Split, ...], ...]
    kind: Literal["soft", "conv"] = "soft"
    width: int = 64
    norm: str | None = None
    drop_rate: float = 0.1
    positions: Literal["sinusoid", "learned"] = "sinusoid"
    pool: Literal["token", "mean"] = "token"

    def __post_init__(self) -> None:
        if not self.splits or not all(self.splits):
            raise ValueError(f"Cascade: each exit needs the splits of its tokenizer; got {self.splits}")
        if self.positions not in ("sinusoid", "learned"):
            raise nearest_match_error("kind of positions", self.positions, ("sinusoid", "learned"))
        if self.kind not in ("soft", "conv"):
            raise nearest_match_error("kind of tokens", self.kind, ("soft", "conv"))
        if self.pool not in ("token", "mean"):
            raise nearest_match_error("pool", self.pool, ("token", "mean"))
        if self.norm is not None and self.kind != "conv":
            raise ValueError(f'Cascade: a norm between steps, {self.norm!r}, is for tokens of the kind "conv"')
        if self.norm is not None and any(len(own) == 1 for own in self.splits):
            raise ValueError(
                f"Cascade: nothing stands between the steps of a single convolution, so no norm {self.norm!r} either"
            )
        object.__setattr__(self, "splits", tuple(checked_splits("Cascade", own) for own in self.splits))


@dataclass(frozen=True)
class Blocks:
    """The blocks of every exit.

    Attributes:
        depth: blocks of every exit, or how many each exit has, coarse to fine; the same for all if relations are reused.
        eps: of every norm but the tokenizers'.
        drop_path_rate: stochastic depth of an exit's last block.
    """

    embed_dim: int = 256
    depth: int | tuple[int, ...] = 12
    heads: int = 4
    mlp_ratio: float = 2.0
    qkv_bias: bool = False
    eps: float = 1e-5
    drop_path_rate: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.depth, int):
            object.__setattr__(self, "depth", tuple(self.depth))  # a file holds lists

    def depths(self, exits: int) -> tuple[int, ...]:
        """Of each exit."""
        found = (self.depth,) * exits if isinstance(self.depth, int) else self.depth
        if len(found) != exits or min(found) < 1:
            raise ValueError(f"Cascade: {exits} exits need one depth, or one for each of them, at least 1; got {self.depth}")
        return found


@dataclass(frozen=True)
class Reuse:
    """What an exit gets of the exit before it.

    Attributes:
        feature: whether it gets its tokens. A small MLP in each block turns them into `width` channels, by `hidden` ones; the
            norm before the block's MLP sees these and the token's own together. A norm with heads needs a multiple of the
            heads: each head gets an equal share beside its own channels.
        relation: whether it gets its attention logits.
        detach: gradients of an exit's loss end at what it reuses, instead of reaching the exits before it.
    """

    feature: bool = True
    relation: bool = True
    hidden: int = 128
    width: int = 48
    detach: bool = False


Group = Tokens | Blocks | Reuse

# Flat name -> its group, and its name there. What is newer than groups has no flat name.
FLAT = {
    "splits": ("tokens", "splits"),
    "token_width": ("tokens", "width"),
    "token_drop_rate": ("tokens", "drop_rate"),
    "positions": ("tokens", "positions"),
    "feature_reuse": ("reuse", "feature"),
    "relation_reuse": ("reuse", "relation"),
    "feature_hidden": ("reuse", "hidden"),
    "feature_width": ("reuse", "width"),
    "detach": ("reuse", "detach"),
    **{field.name: ("blocks", field.name) for field in fields(Blocks)},
}


def cascade_options(given: Mapping[str, Any], *, tokens: Tokens, blocks: Blocks, reuse: Reuse, **others: Any) -> dict[str, Any]:
    """Keyword arguments of `Cascade`: those given, grouped or flat, before the defaults, which are all others."""
    groups: dict[str, Group] = {"tokens": tokens, "blocks": blocks, "reuse": reuse}
    changes: dict[str, dict[str, Any]] = {name: {} for name in groups}
    for option, value in given.items():
        if option == "tokens" and isinstance(value, str):  # flat: the kind
            _note(changes, "tokens", {"kind": value})
        elif option in groups:
            _note(changes, option, value if isinstance(value, Mapping) else _values(value))
        elif option in FLAT:
            where, name = FLAT[option]
            _note(changes, where, {name: value})
        else:
            others[option] = value
    for name, group in groups.items():
        others[name] = _changed(name, group, changes[name])
    return others


def _note(changes: dict[str, dict[str, Any]], group: str, values: Mapping[str, Any]) -> None:
    if twice := sorted(changes[group].keys() & values.keys()):
        raise ValueError(f"Cascade: {', '.join(f'{group}.{name}' for name in twice)} is given twice: in its group, and flat")
    changes[group].update(values)


def _changed(name: str, group: Group, changes: dict[str, Any]) -> Group:
    known = _values(group)
    for option in changes:
        if option not in known:
            raise nearest_match_error(f"option in the group {name!r} of a cascade", option, known)
    return replace(group, **changes)


def _values(group: Group) -> dict[str, Any]:
    return {field.name: getattr(group, field.name) for field in fields(group)}
