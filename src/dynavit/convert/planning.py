"""From a model to the plan of its swap."""

from dataclasses import replace
from typing import Any

from torch import nn

from ..norms.factory import folds, norm_class_of
from . import trace as tracing
from .linear_bn import find_linear_bn
from .plan import SwapPlan, SwapRow
from .rows import RowMaker
from .select import Where, selector
from .sites import LocatedNorm, find_norms


def plan_swap(
    model: nn.Module,
    norm: str = "dtn",
    *,
    where: Where | None = None,
    norm_options: dict[str, Any] | None = None,
    causal: bool = False,
    input_size: Any = None,
) -> SwapPlan:
    """Say what `swap_norms` would do to each norm of a model, and why; nothing is changed.

    By default the norms of blocks that belong to attention and MLP are swapped; for a norm that folds away at evaluation every
    norm is, since one that stays would be all that is left to compute. The model is run once, in evaluation mode, on random
    input, if its input size is given or can be read from it.

    Args:
        norm: a name of `list_norms()`.
        where: a name pattern ("blocks.*.norm1"), a list of them, a range of block indices, a function of a row, or a dict
            with any of "pattern", "depth" (first, last) and "site" ("attn", "mlp", "other", "linear_bn").
        norm_options: options of the norm; a "heads" or "ndim" here overrides what the model says.
        causal: the model is run with a causal mask. (One that is passed when the model is called cannot be seen.)
        input_size: 224, (rows, cols) or (channels, rows, cols): the image of the planning run.
    """
    return plan_and_trace(model, norm, where, norm_options, causal, input_size)[0]


def plan_and_trace(
    model: nn.Module, norm: str, where: Where | None, norm_options: dict[str, Any] | None, causal: bool, input_size: Any
) -> tuple[SwapPlan, tracing.Trace | None]:
    norm_class_of(norm)  # a wrong name is an error before anything is run
    options = dict(norm_options or {})
    plan = SwapPlan(type(model).__name__, norm, [], options, causal=causal)
    found = find_norms(model) + find_linear_bn(model)
    trace = _try_to_run(model, found, input_size, plan)
    maker = RowMaker(model, plan, found, trace)
    rows = [maker.row(item) for item in found]
    plan.rows = [row for row, _ in rows]
    if where is not None:
        chosen = selector(where, plan.rows)
        plan.rows = [_choose(row, possible, chosen(row), "selected by where=") for row, possible in rows]
    elif folds(norm):
        why = f"{norm} folds away, so no other norm should stay"
        plan.rows = [_choose(row, possible, row.site != "linear_bn", why) for row, possible in rows]
    if not plan.rows:
        plan.notes.append("the model has no norm of the LayerNorm family")
    return plan, trace


def _try_to_run(model: nn.Module, found: list[LocatedNorm], input_size: Any, plan: SwapPlan) -> tracing.Trace | None:
    if not found:
        return None
    x = tracing.sample_input(model, input_size)
    if x is None:
        plan.notes.append(
            "input size unknown (pass input_size=): layouts and prefix tokens are those the modules suggest, not observed"
        )
        return None
    try:
        trace = tracing.run(model, found, x)
    except Exception as error:  # anyone's model may raise anything; the plan goes on without what a run would have shown
        if input_size is not None:
            raise ValueError(f"{type(model).__name__} could not be run on input of shape {tuple(x.shape)}: {error}") from error
        plan.notes.append(
            f"could not be run on input of shape {tuple(x.shape)} ({type(error).__name__}: {error}); pass input_size="
        )
        return None
    plan.input_size, plan.first = tuple(x.shape[1:]), trace.first
    return trace


def _choose(row: SwapRow, possible: bool, chosen: bool, why: str) -> SwapRow:
    if chosen and possible and row.action != "swap":
        return replace(row, action="swap", reason=f"{why} ({row.reason})")
    if not chosen and row.action == "swap":
        return replace(row, action="keep", reason="not selected by where=")
    return row
