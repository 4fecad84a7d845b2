"""Sections of early exit, once `dynavit calibrate` has found thresholds for a run. Exits are counted from 1."""

from typing import Any

from ..blocks import Block, Figures, Samples, Section, Table, Text
from ..figures.trade_off import trade_off_figure
from ..read import Run
from ..words import percent, samples_of, split_name

CONFIDENCES = {
    "max_softmax": "its largest probability",
    "margin": "its largest probability minus the second largest",
    "entropy": "1 − entropy / log(classes)",
}


def sections(run: Run) -> list[Section]:
    """With images that left at each exit, if the analysis on the same page does not show them already."""
    found = run.calibration
    if not found:
        return []
    images = gallery(found) if "exits" not in run.inside.kinds else []
    return [Section("Early exit", [*how_found(found), exits_table(found), figures(found), *images])]


def how_found(found: dict[str, Any]) -> list[Block]:
    policy = found["policy"]
    where = policy.get("found_on")
    on = f" on {where['samples']} images, the {split_name(where['split'])} of {where['data']}," if where else ""
    text = (
        f"An image leaves at the first exit whose confidence, {CONFIDENCES[policy['confidence_kind']]}, reaches a threshold; "
        f"only the others go on. The thresholds were found{on} for this goal: {policy['found_by']}. Below they are judged on "
        f"{found['samples']} images, the {split_name(found['split'])} of {found['data']}."
    )
    same = where and (where["data"], where["split"]) == (found["data"], found["split"])
    return [Text(text), Text("Both are the same images, so these results are better than on others.")] if same else [Text(text)]


def exits_table(found: dict[str, Any]) -> Table:
    policy = found["policy"]
    columns = zip(policy["thresholds"], found["shares"], found["anytime"], policy["gmacs"], policy["milliseconds"], strict=True)
    rows = [
        [f"exit {k}", threshold_text(threshold), percent(share), percent(accuracy), cost_text(gmacs), cost_text(milliseconds)]
        for k, (threshold, share, accuracy, gmacs, milliseconds) in enumerate(columns, 1)
    ]
    early = [percent(found["accuracy"]), cost_text(found["gmacs"]), cost_text(found["milliseconds"])]
    header = ["", "leaves from", "images leaving here, %", "accuracy, %", "GMACs per image", "ms per image"]
    notes = [
        "The row of an exit is about all images leaving there; its cost includes all exits before it.",
        f"Times are measured on batches of {policy['batch_size']}. The last row is early exit executed: batches shrink from "
        "exit to exit, and each image of a small batch may take longer.",
    ]
    return Table("Exits of the cascade", header, [*rows, ["early exit", "", percent(1.0), *early]], notes=notes)


def figures(found: dict[str, Any]) -> Figures:
    policy = found["policy"]
    reading = "Squares are single exits for all images, the disc is early exit with the thresholds above"
    shown = []
    for cost, xlabel, line, meaning in (
        ("gmacs", "GMACs per image", "curve", "The line is early exit with other thresholds, for smaller and larger budgets."),
        (
            "milliseconds",
            f"ms per image, batches of {policy['batch_size']}",
            "measured",
            "The same over measured time, early exit executed.",
        ),
    ):
        curve = [(point[cost], point["accuracy"]) for point in found[line]]
        exits = list(zip(policy[cost], found["anytime"], strict=True))
        caption = f"{meaning if curve else ''} {reading}. Higher and further left is better.".strip()
        chosen = (found[cost], found["accuracy"])
        shown.append(trade_off_figure(f"Accuracy over {xlabel}", caption, xlabel, curve, exits, chosen))
    return Figures(shown)


def gallery(found: dict[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    for number, images in enumerate(found["gallery"], 1):
        if samples := samples_of(images, found["classes"]):
            blocks.append(Samples(samples, gallery_caption(number, len(found["gallery"]))))
    return blocks


def gallery_caption(number: int, exits: int) -> str:
    """Of the images that left at one of several exits, counted from 1."""
    if number == 1:
        kind = "easy ones: the first exit was sure enough of them"
    else:
        kind = f"{'the hardest' if number == exits else 'harder'} ones: no exit before was sure of them"
    return f"Some images that left at exit {number}, {kind}. Prediction and confidence; wrong ones are underlined."


def threshold_text(threshold: float | None) -> str:
    """
    >>> [threshold_text(value) for value in (None, 0.91234, 1e8)]
    ['always', '0.912', 'never']
    """
    if threshold is None or threshold <= 0:
        return "always"
    return "never" if threshold > 1 else f"{threshold:.3f}"


def cost_text(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
