"""Parameter reorganisation: norms that are affine maps at evaluation disappear into the linear layers around them."""

import copy

from torch import Tensor, nn

from ...convert.trace import sample_input
from .centre_stream import centre_streams
from .freeze import freeze_token_norms
from .fuse import fuse_modules
from .graph import Marker, trace_flow
from .move_maps import Rewriter, backward_problem, forward_problem
from .plan import FoldPlan
from .report import FoldReport, FoldRow
from .sites import Site, activations, find_sites
from .steps import DropAffine, FoldAway, TakeOneSize
from .verify import verify_fold

NO_MEAN = "its mean removal moved into the layers that write its tokens, the division by their root mean square stays"
NOTHING = "nothing of it is constant"


def fold(
    model: nn.Module, *, example: Tensor | None = None, grid: tuple[int, int] | None = None, verify: bool = True
) -> nn.Module:
    """A new model that computes the same without its foldable norms.

    Its `fold_report` says what happened to each norm, and its `fold_plan` holds the changes of structure (`apply_fold_plan`).
    Modules that can `fuse()` themselves do so first. Of norms that look at their tokens (LayerNorm, RMS, ...) weight and bias
    fold, and of LayerNorm the mean removal too, where everything that writes its tokens is known.

    Args:
        model: in evaluation mode. It is not changed.
        example: an input, from which the graph is drawn and on which the result is compared; by default two random images
            of the size that the model names.
        grid: freeze every DTN for this grid of tokens (in a pyramid: of the first DTN).
        verify: compare the result with a float64 run of the model, see `verify_fold`.
    """
    training = [path or type(model).__name__ for path, module in model.named_modules() if module.training]
    if training:
        raise ValueError(f"fold takes a model in evaluation mode, and {training[0]} is in training mode: call .eval() first")
    given = example is not None
    example = example if example is not None else sample_input(model, None)
    if example is None:
        raise ValueError(f"the input size of {type(model).__name__} is unknown: give fold an input as example=")
    plan = copy.deepcopy(getattr(model, "fold_plan", None)) or FoldPlan(type(model).__name__)  # of a folded model: go on
    folded, fused = fuse_modules(copy.deepcopy(model), plan)
    report = FoldReport(fused=fused)
    if grid is not None:
        folded, report.frozen, example = freeze_token_norms(folded, plan, grid, example, resize=not given)
    report.rows = _fold_norms(folded, plan, example)
    centred = centre_streams(folded, plan, example)
    for row in report.rows:
        if row.path in centred:
            stays = centred[row.path]
            row.action, row.reason = (row.action, f"mean removal: {stays}") if stays else ("partly", NO_MEAN)
    if any(row.one_size for row in report.rows):
        report.only_shape = tuple(example.shape[1:])
        plan.take(folded, TakeOneSize(report.only_shape))
    folded.fold_report, folded.fold_plan = report, plan  # type: ignore[assignment]
    if verify:
        measured = verify_fold(model, folded, example)
        report.error, report.own_error, report.limit = measured.error, measured.own_error, measured.limit
        report.changed = measured.changed
    return folded


def _fold_norms(model: nn.Module, plan: FoldPlan, example: Tensor) -> list[FoldRow]:
    """Fold norms in place. Of two norms in a row the second folds first, so there may be several rounds."""
    rows: dict[str, FoldRow] = {}
    again = True
    while again:
        found, again = _fold_once(model, plan, example)
        for row in found:
            if row.action != "left" or row.path not in rows or rows[row.path].action == "left":
                rows[row.path] = row
    return list(rows.values())


def _fold_once(model: nn.Module, plan: FoldPlan, example: Tensor) -> tuple[list[FoldRow], bool]:
    """One round: a row for each norm, and whether a norm that was left now stands beside one that is gone."""
    sites = find_sites(model)
    if all(site.scale is None or site.trouble for site in sites):
        return [_row(site, "left", reason=site.trouble or NOTHING) for site in sites], False
    markers, linears = trace_flow(model, sites, example)
    rewriter = Rewriter(model, plan, linears)
    rows = []
    for marker in markers:
        site = marker.site
        if site.scale is None or site.trouble:
            rows.append(_row(site, "left", reason=site.trouble or NOTHING))
        elif not marker.inputs:
            rows.append(_row(site, "left", reason="the model does not call it"))
        elif not (problem := forward_problem(model, marker)):
            stays = "" if site.whole else "what it computes from its tokens stays"
            rows.append(_row(site, "folded" if site.whole else "partly", rewriter.forward(marker), stays))
            rows[-1].one_size = marker.by_size and site.shift is not None
        elif not (behind := backward_problem(model, marker, linears)):
            rows.append(_row(site, "folded", rewriter.backward(marker)))
            rows[-1].one_size = any(linear.by_size for linear in linears if linear.weight in rows[-1].into)
        else:
            rows.append(_row(site, "left", reason=f"{problem}; {behind}" if site.whole else problem))
    rewriter.write()
    for site, row in zip(sites, rows, strict=True):
        if row.action != "left":
            plan.take(model, FoldAway(site.paths, tuple(activations(site.norm))) if site.whole else DropAffine(site.path))
    actions = {marker: row.action for marker, row in zip(markers, rows, strict=True)}
    beside = [{actions[marker], actions[read.by]} for marker in markers for read in marker.reads if isinstance(read.by, Marker)]
    return rows, {"folded", "left"} in beside


def _row(site: Site, action: str, into: list[str] | None = None, reason: str = "") -> FoldRow:
    spread = None
    if site.scale is not None:
        size = site.scale.abs()
        spread = float(size.max() / size.median().clamp_min(1e-300))
    return FoldRow(site.path, type(site.norm).__name__, action, into or [], reason, spread=spread)  # type: ignore[arg-type]
