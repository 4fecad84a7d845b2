"""Replace the norms of anyone's model."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..norms import DynamicTokenNorm, Norm, create_norm
from ..norms.annealed import AnnealedNorm
from ..norms.factory import norm_class_of
from . import trace as tracing
from .grid import Carrier, attach
from .linear_bn import LinearThenNorm, is_linear_bn
from .plan import SwapPlan, SwapRow
from .planning import NEED_GRID, plan_and_trace
from .select import Where
from .site_hook import SiteHook, hook_of
from .sites import OldNorm, read_norm
from .start import choose_start, set_start


def swap_norms(
    model: nn.Module,
    norm: str = "dtn",
    *,
    where: Where | None = None,
    start: str | None = None,
    norm_options: dict[str, Any] | None = None,
    inplace: bool = False,
    causal: bool = False,
    input_size: Any = None,
) -> nn.Module:
    """Replace norms of a model; affine weights and eps are carried over. The plan stays with it as `model.swap_plan`.

    Args:
        model: any module. A copy is changed and returned, unless `inplace`.
        norm, where, norm_options, causal, input_size: as in `plan_swap`, which shows what will happen.
        start: "identity": the model computes what it did, and what is new is frozen until `unfreeze_norms`;
            "near": mixing weights of 0.98, all trainable, the default where the norm can; "fresh": the norm's own beginning.
    """
    plan, trace = plan_and_trace(model, norm, where, norm_options, causal, input_size)
    if not plan.swapped():
        reasons = sorted({f"{row.action}: {row.reason}" for row in plan.rows} | set(plan.notes))
        raise ValueError(f"{type(model).__name__}: there is no norm to swap. " + "; ".join(reasons[:6]))
    kinds = {_old_norm(model, row).kind for row in plan.swapped()}
    plan.start = choose_start(start, norm, norm_class_of(norm), plan.norm_options, kinds)
    swapped = apply_plan(model if inplace else copy.deepcopy(model), plan)
    if trace is not None and plan.start != "fresh":
        plan.deviation = _deviation(swapped, trace)
    return swapped


def apply_plan(model: nn.Module, plan: SwapPlan) -> nn.Module:
    """Do to this model what the plan says: the model it was made for, or another of the same architecture. In place."""
    carrier = Carrier(plan.patch)
    for row in plan.swapped():
        old = _old_norm(model, row)
        norm = _new_norm(model, row, old, plan)
        if plan.start is not None:
            set_start(norm, plan.start)
        needs_grid = isinstance(norm, DynamicTokenNorm) and norm.ndim == 2
        hook = SiteHook(row.path, row.layout, row.num_prefix_tokens, carrier if needs_grid else None)
        if needs_grid or row.layout in ("channels_first", "sequence_first"):
            norm.register_forward_pre_hook(hook.before, with_kwargs=True)
        if row.layout in ("channels_first", "sequence_first"):
            norm.register_forward_hook(hook.after)
        _put(model, row, norm)
    _forbid_fused_layers(model)
    # Norms of an earlier swap that stay are served by the same carrier.
    prefixes = {}
    for path, module in model.named_modules(remove_duplicate=False):
        hook_there = hook_of(module)
        if hook_there is not None and hook_there.carrier is not None:
            hook_there.carrier = carrier
            prefixes[path] = hook_there.prefix
    if prefixes:
        first = plan.first or next((path for path, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Unfold)), None)
        attach(model, carrier, prefixes, first)
    model.swap_plan = plan  # type: ignore[assignment]
    return model


def _old_norm(model: nn.Module, row: SwapRow) -> OldNorm:
    try:
        module = model.get_submodule(row.path)
    except AttributeError:
        raise ValueError(
            f"the plan names {row.path}, which {type(model).__name__} does not have: it was made for another model"
        ) from None
    if row.site == "linear_bn" and isinstance(module, nn.BatchNorm1d):
        old: OldNorm | None = OldNorm("bn", module.num_features, module.eps, module.weight, module.bias)
    else:
        old = read_norm(module)
    if old is None or old.dim != row.dim:
        raise ValueError(
            f"the plan expects a norm of {row.dim} channels ({row.old}) at {row.path}; this {type(model).__name__} has {module}"
        )
    return old


def _new_norm(model: nn.Module, row: SwapRow, old: OldNorm, plan: SwapPlan) -> Norm:
    module = model.get_submodule(row.path)
    like = (
        old.weight if old.weight is not None else next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    )
    options: dict[str, Any] = {
        "heads": row.heads,
        "eps": old.eps,
        "affine": old.weight is not None,
        "device": like.device,
        "dtype": like.dtype,
    }
    if plan.norm in NEED_GRID:
        options["num_prefix_tokens"] = row.num_prefix_tokens
        if plan.norm == "dtn":
            options["ndim"] = row.ndim
    norm = create_norm(plan.norm, row.dim, **{**options, **plan.norm_options})
    for new, was in ((norm.weight, old.weight), (norm.bias, old.bias)):
        _carry_over(new, was)
    if isinstance(norm, AnnealedNorm) and old.kind == "ln":  # it begins as a LayerNorm: as this one
        _carry_over(norm.ln_weight, old.weight)
        _carry_over(norm.ln_bias, old.bias)
    return norm.train(module.training)


@torch.no_grad()
def _carry_over(new: nn.Parameter | None, was: Tensor | None) -> None:
    if new is None or was is None or was.numel() != new.numel():
        return
    if not new.is_meta and not was.is_meta:
        new.copy_(was.reshape(new.shape))
    if isinstance(was, nn.Parameter):
        new.requires_grad_(was.requires_grad)


def _put(model: nn.Module, row: SwapRow, norm: Norm) -> None:
    for path in (row.path, *row.also):
        if row.site != "linear_bn":
            parent, _, name = path.rpartition(".")
            model.get_submodule(parent).register_module(name, norm)
            continue
        pair_path = path.rpartition(".")[0]
        pair = model.get_submodule(pair_path)
        assert is_linear_bn(pair) and isinstance(pair.linear, nn.Linear)
        parent, _, name = pair_path.rpartition(".")
        model.get_submodule(parent).register_module(name, LinearThenNorm(pair.linear, norm).train(pair.training))


def _forbid_fused_layers(model: nn.Module) -> None:
    """At evaluation nn.TransformerEncoderLayer hands the weights of its norms to one fused operator, which is LayerNorm's."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and (
            isinstance(module.norm1, Norm) or isinstance(module.norm2, Norm)
        ):
            module.activation_relu_or_gelu = 0  # only read to decide about the fused operator


@torch.no_grad()
def _deviation(swapped: nn.Module, trace: tracing.Trace) -> float | None:
    """Largest change of an output on the planning run's input, relative to its largest value."""
    if trace.inputs.is_meta or not trace.outputs:
        return None
    after = tracing.tensors_in(copy.deepcopy(swapped).eval()(trace.inputs.detach()))
    ratios = [
        float((new.double() - old.double()).abs().max() / old.double().abs().max().clamp_min(1e-30))
        for new, old in zip(after, trace.outputs, strict=True)
        if old.numel()
    ]
    return max(ratios, default=None)
