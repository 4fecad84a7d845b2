"""LeViT and models like it: no norm in front of attention and MLP, but a BatchNorm behind every linear layer.

Some linear layers read a block's input: those of queries, keys and values, and the first one of the MLP. Their BatchNorm is the
nearest thing to a norm in front of the block, and may be replaced by one that sees the tokens on their grid.
"""

import re

from torch import Tensor, nn

from .sites import LocatedNorm, OldNorm, heads_of, is_attention

_READS_INPUT = re.compile(r"(^|\.)(qkv|mlp\.(ln1|fc1|0))$")


class LinearThenNorm(nn.Module):
    """A linear layer and the norm of its output. The names `linear` and `bn` are kept, and with them checkpoints' keys."""

    def __init__(self, linear: nn.Linear, norm: nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.bn = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.linear(x))


def is_linear_bn(module: nn.Module) -> bool:
    """A linear layer and a BatchNorm1d, nothing else."""
    children = dict(module.named_children())
    return (
        set(children) == {"linear", "bn"}
        and isinstance(children["linear"], nn.Linear)
        and isinstance(children["bn"], nn.BatchNorm1d)
    )


def find_linear_bn(model: nn.Module) -> list[LocatedNorm]:
    """BatchNorms behind the linear layers that read the input of a block."""
    found: list[LocatedNorm] = []
    modules = dict(model.named_modules())
    blocks: dict[str, int] = {}
    for path, module in modules.items():
        if not is_linear_bn(module) or not _READS_INPUT.search(path):
            continue
        block = path.rpartition(".")[0].rpartition(".")[0]
        attention = next(
            (m for p, m in modules.items() if p.startswith(f"{block}.") and heads_of(m) is not None and is_attention(m)), None
        )
        if attention is None:
            continue
        bn = module.bn
        assert isinstance(bn, nn.BatchNorm1d)
        old = OldNorm("bn", bn.num_features, bn.eps, bn.weight, bn.bias)
        depth = blocks.setdefault(block, len(blocks))
        heads, name = heads_of(attention), type(attention).__name__
        # The run watches the pair: what it receives, (b, t, c), tells more than the flattened (b t, c) of its BatchNorm.
        found.append(LocatedNorm(f"{path}.bn", module, old, "block", "linear_bn", block, depth, heads, name))
    return found
