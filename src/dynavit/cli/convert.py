"""`dynavit convert`: what a swap of norms would do to a model."""

from typing import Any, Literal

from ..common.fits import Count, Pixels
from .show import print_table


def convert(
    model: str,
    norm: str = "dtn",
    where: list[str] | str | None = None,
    site: str | None = None,
    depth: list[Count] | None = None,
    start: Literal["identity", "near", "fresh"] | None = None,
    input_size: Pixels | list[Pixels] | None = None,
    num_classes: Count | None = None,
    causal: bool = False,
    json: bool = False,
) -> None:
    """Show which norms of a model would be swapped, which kept or refused, and why.

    The model is built with random weights and, with --start, really converted: then the change of its outputs is shown
    too. In Python: `dynavit.plan_swap(model, norm)` and `dynavit.swap_norms(model, norm)`.

    Args:
        model: a name of `dynavit list models`, or any name of timm.
        norm: a name of `dynavit list norms`.
        where: a name pattern such as 'blocks.*.norm1', or a list of them.
        site: attn, mlp, other or linear_bn.
        depth: [first, last] index of blocks.
        start: convert, and start the new norms like this.
        input_size: 224 or [rows, cols]; by default what the model says.
        num_classes: of the model that is built.
        causal: the model runs with a causal mask, so norms that mix tokens are refused.
        json: print the plan as JSON.
    """
    from ..convert import plan_swap, swap_norms
    from ..models import create_model

    options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    built = create_model(model, **options)
    chosen = {key: value for key, value in {"pattern": where, "site": site, "depth": depth}.items() if value is not None}
    if start is None:
        plan = plan_swap(built, norm, where=chosen or None, causal=causal, input_size=input_size)
    else:
        built = swap_norms(built, norm, where=chosen or None, start=start, causal=causal, input_size=input_size, inplace=True)
        plan = built.swap_plan  # type: ignore[assignment]
    if json:
        print(plan.to_json())
        return
    print_table(
        f"{model}: norms -> {norm}",
        ["path", "old", "action", "site", "heads", "layout", "prefix", "grid", "why"],
        [
            [
                row.path,
                row.old,
                row.action,
                row.site,
                str(row.heads),
                row.layout,
                str(row.num_prefix_tokens),
                "x".join(map(str, row.grid)) if row.grid else "-",
                row.reason,
            ]
            for row in plan.rows
        ],
    )
    counts = plan.counts()
    print(f"{counts['swap']} swapped, {counts['keep']} kept, {counts['refuse']} refused")
    for note in plan.notes:
        print(f"note: {note}")
    if plan.deviation is not None:
        print(f"start={plan.start}: outputs on random input change by at most {plan.deviation:.2g} of the largest")
