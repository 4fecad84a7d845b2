"""The folded structure of a run, to load its weights into: from what model.json says about the fold."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .folding import fold
from .plan import FoldPlan, apply_fold_plan
from .report import FoldReport


def folded_structure(model: nn.Module, about: dict[str, Any], input_size: Sequence[int]) -> nn.Module:
    """Give a model that was just built the structure of the folded run.

    Args:
        about: `ModelCard.fold`: "plan" and "report". Runs that were folded before there were plans have none.
        input_size: of one input, (channels, height, width); needed where there is no plan.
    """
    folded = apply_fold_plan(model, FoldPlan.from_json(about["plan"])) if "plan" in about else _fold_again(model, input_size)
    if "report" in about:
        folded.fold_report = FoldReport.from_dict(about["report"])  # type: ignore[assignment]
    return folded


def _fold_again(model: nn.Module, input_size: Sequence[int]) -> nn.Module:
    """Fold the fresh model. Which norms go and which biases come follows from its graph, not from its weights."""
    parts: Any = model.modules()
    for part in parts:
        if hasattr(part, "set_progress"):
            part.set_progress(1, 1)  # a fresh annealed norm would refuse
    return fold(model.eval(), example=torch.zeros(2, *input_size), verify=False)
