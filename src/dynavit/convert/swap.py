"""Replace the norms of a model."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..norms import Norm
from ..norms.seat import Seat, seat_norm
from . import trace as tracing
from .blocked import BLOCKED
from .grid import Carrier, attach
from .linear_bn import LinearThenNorm, is_linear_bn
from .nothing import nothing_to_swap
from .plan import SwapPlan, SwapRow
from .planning import plan_and_trace
from .select import Where
from .site_hook import SiteHook, hook_of
from .sites import OldNorm, read_norm
from .start import choose_start, set_start
from .undecayed import exempt_norms


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
        start: "identity": the model computes what it did, and departs from it with the first step of training;
            "near": the old norm has 98 % of the mixture, the default for norms that can; "fresh": the norm's own start.
    """
    plan, trace = plan_and_trace(model, norm, where, norm_options, causal, input_size)
    if not plan.swapped():
        raise ValueError(nothing_to_swap(plan))
    changed = model if inplace else copy.deepcopy(model)
    norms = _new_norms(changed, plan)
    kinds = {_old_norm(changed, row).kind for row in plan.swapped()}
    plan.start = choose_start(start, norm, next(iter(norms.values())), kinds)
    plan.earlier = getattr(model, "swap_plan", None)
    _replace(changed, plan, norms)
    if trace is not None and plan.start != "fresh":
        plan.deviation = _deviation(changed, trace)
    return changed


def apply_plan(model: nn.Module, plan: SwapPlan) -> nn.Module:
    """Carry out a plan, in place, on the model it was made for or another of the same architecture.

    A plan that was made for a swapped model brings the earlier one, which is carried out first, if it has not been yet.
    """
    if plan.earlier is not None and getattr(model, "swap_plan", None) != plan.earlier:
        apply_plan(model, plan.earlier)
    _replace(model, plan, _new_norms(model, plan))
    return model


def _replace(model: nn.Module, plan: SwapPlan, norms: dict[str, Norm]) -> None:
    """Put the norms at the plan's paths, with hooks for the order of axes and for the grid."""
    carrier = Carrier(plan.patch)
    for row in plan.swapped():
        norm = norms[row.path]
        if plan.start is not None:
            set_start(norm, plan.start)
        _hook(norm, row, carrier)
        _put(model, row, norm)
    _forbid_fused_layers(model)
    # Norms of an earlier swap that stay are served by the same carrier.
    served: dict[str, tuple[int, int]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        hook = hook_of(module)
        if hook is not None and hook.carrier is not None:
            hook.carrier = carrier
            served[path] = (hook.prefix, 4 if hook.layout in BLOCKED else 3)
    if served:
        first = plan.first or next((path for path, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Unfold)), None)
        attach(model, carrier, served, first)
    exempt_norms(model)
    model.swap_plan = plan  # type: ignore[assignment]


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


def _new_norms(model: nn.Module, plan: SwapPlan) -> dict[str, Norm]:
    """A norm for each path of the plan, with the parameters that it takes over from the old one."""
    return {row.path: _new_norm(model, row, plan) for row in plan.swapped()}


def _new_norm(model: nn.Module, row: SwapRow, plan: SwapPlan) -> Norm:
    old = _old_norm(model, row)
    like = (
        old.weight if old.weight is not None else next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    )
    norm = seat_norm(
        plan.norm,
        Seat(row.dim, row.heads, row.num_prefix_tokens, row.ndim),
        plan.norm_options,
        eps=old.eps,
        affine=old.weight is not None,
        device=like.device,
        dtype=like.dtype,
    )
    given = {"weight": old.weight, "bias": old.bias}
    for own, theirs in norm.inherited(old.kind).items():
        _carry_over(getattr(norm, own), given[theirs])
    return norm.train(model.get_submodule(row.path).training)


@torch.no_grad()
def _carry_over(new: nn.Parameter | None, was: Tensor | None) -> None:
    if new is None or was is None or was.numel() != new.numel():
        return
    if not new.is_meta and not was.is_meta:
        new.copy_(was.reshape(new.shape))
    if isinstance(was, nn.Parameter):
        new.requires_grad_(was.requires_grad)


def _hook(norm: Norm, row: SwapRow, carrier: Carrier) -> None:
    ndim = getattr(norm, "ndim", row.ndim) if norm.needs_grid else 0
    hook = SiteHook(row.path, row.layout, row.num_prefix_tokens, carrier if ndim == 2 else None, sequence=ndim == 1)
    other_order = row.layout in ("channels_first", "sequence_first") or (ndim and row.layout in BLOCKED)
    if ndim or other_order:
        norm.register_forward_pre_hook(hook.before, with_kwargs=True)
    if other_order:
        norm.register_forward_hook(hook.after, with_kwargs=True)


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
