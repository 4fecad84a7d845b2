"""Features of a model that stays as it is: which tokens of which blocks, by a short name.

    cls:n             class tokens of the last n blocks, each through the last norm, side by side
    cls_or_mean:n     the same, but the mean of the patches for blocks that have no class token yet, or for models without any
    ...+mean          beside them the mean of the patches after the last block

A class token that enters late is there in the last blocks only, so `cls:4` is undefined for a model whose token enters before
the last two.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

DEFAULT = "cls_or_mean:4"
_NAME = re.compile(r"(cls|cls_or_mean):([1-9]\d*)(\+mean)?")


@dataclass(frozen=True)
class FeatureSet:
    """A kind of features.

    Attributes:
        blocks: how many of the last ones.
        needs_token: whether each of these has to have a class token.
        mean: whether the mean of the patches stands beside them.
    """

    blocks: int
    needs_token: bool
    mean: bool

    @classmethod
    def of(cls, name: str) -> "FeatureSet":
        """
        >>> FeatureSet.of("cls:1+mean")
        FeatureSet(blocks=1, needs_token=True, mean=True)
        """
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(
                f"features {name!r}: cls:N or cls_or_mean:N of the last N blocks, +mean behind either, as cls:1+mean"
            )
        return cls(int(match[2]), match[1] == "cls", match[3] is not None)

    def __str__(self) -> str:
        return f"{'cls' if self.needs_token else 'cls_or_mean'}:{self.blocks}{'+mean' if self.mean else ''}"

    def check(self, model: nn.Module) -> None:
        """ValueError where the model has fewer blocks, or fewer with a class token."""
        depth, with_token = depth_of(model), blocks_with_token(model)
        if self.blocks > depth:
            raise ValueError(
                f"features {self}: the model has {depth} blocks, not {self.blocks}; take cls_or_mean:{depth} or less"
            )
        if self.needs_token and self.blocks > with_token:
            raise ValueError(
                f"features {self} need a class token in the last {self.blocks} blocks, and the model's is there in the last "
                f"{with_token} of {depth}; take {f'cls:{with_token} or ' if with_token else ''}cls_or_mean:{self.blocks}"
            )

    def select(self, tokens: Tensor, mean: Tensor) -> Tensor:
        """From `token_pieces`, (b, n, c) and (b, c) -> features (b, ...)."""
        chosen = tokens[:, -self.blocks :].flatten(1)
        return torch.cat([chosen, mean], 1) if self.mean else chosen


def depth_of(model: nn.Module) -> int:
    """Blocks that features can be taken from; 0 for models that are no plain stack of them."""
    blocks = getattr(model, "blocks", None)
    plain = isinstance(blocks, nn.Sequential | nn.ModuleList) and hasattr(model, "forward_intermediates")
    return len(blocks) if plain and not hasattr(model, "exits") else 0  # type: ignore[arg-type]


def blocks_with_token(model: nn.Module) -> int:
    """The number of blocks, the last ones, in which a class token is there."""
    if not getattr(model, "num_prefix_tokens", 0) or getattr(model, "cls_token", None) is None:
        return 0
    return depth_of(model) - getattr(model, "token_enters", 0)


@torch.no_grad()
def token_pieces(model: nn.Module, images: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """The pieces that feature sets are made of: (b, n, c), the class token or the mean patch after each of the last n blocks,
    and (b, c), the mean patch after the last one. All behind the last norm.

    Models that are no plain stack of blocks have one piece, what their classifier would read.
    """
    if not depth_of(model):
        pooled = model.forward_head(model.forward_features(images), pre_logits=True)  # type: ignore[operator]
        return pooled[:, None].float(), pooled.float()
    found = model.forward_intermediates(  # type: ignore[operator]
        images, indices=blocks, return_prefix_tokens=True, norm=True, output_fmt="NLC", intermediates_only=True
    )
    tokens: list[Tensor] = []
    mean = images.new_zeros(0)
    for each in found:
        patches, prefix = each if isinstance(each, tuple) else (each, each[:, :0])
        mean = patches.mean(1)
        tokens.append(prefix[:, 0] if prefix.shape[1] and blocks_with_token(model) else mean)
    return torch.stack(tokens, 1).float(), mean.float()
