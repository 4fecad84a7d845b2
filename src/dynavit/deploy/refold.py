"""A folded model without its weights, to load them into."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .folding import fold


def fold_structure(model: nn.Module, input_size: Sequence[int], state: Mapping[str, Tensor]) -> nn.Module:
    """Fold a model that was just built, so that `state` fits it.

    Which norms go follows from the model's graph, not from its weights. Which biases come does not: a fresh norm has no shift.
    """
    parts: Any = model.modules()
    for part in parts:
        if hasattr(part, "set_progress"):
            part.set_progress(1, 1)  # a fresh annealed norm would refuse
    folded = fold(model.eval(), example=torch.zeros(2, *input_size), verify=False)
    for name in sorted(state.keys() - folded.state_dict().keys()):
        path, _, last = name.rpartition(".")
        layer = folded.get_submodule(path)
        if last == "bias" and getattr(layer, "bias", state) is None:
            layer.register_parameter("bias", nn.Parameter(torch.empty_like(state[name])))
    return folded
