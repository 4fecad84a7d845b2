"""How well the anchors of a detector fit the things it shall find."""

from typing import Any

from ..blocks import Figures, Section, Table, Text
from ..figures.bars import bars_figure
from ..words import number_text
from .runs import RunNumbers, run_name


def anchors(found: dict[str, Any]) -> Section:
    text = Text(
        "A detector predicts offsets from anchors, and an anchor learns a thing that it overlaps enough; every thing also has "
        "its best anchors. Things whose best anchor overlaps them by less than half are learned by few anchors and from far "
        "away: many of them ask for another task.anchor_scale."
    )
    return Section("Anchors and things", [text, *(block for run in found["runs"] for block in _blocks(run))])


def _blocks(run: RunNumbers) -> list[Figures | Table]:
    name = run_name(run)
    counts = run["histogram"]
    edges = [f"{at / len(counts):g}" for at in range(len(counts))]
    figure = bars_figure(
        f"Best overlap of each thing, {name}",
        f"{name}: things by the overlap with their best anchor, in steps of {1 / len(counts):g}.",
        "overlap (IoU), from",
        "things",
        edges,
        counts,
    )
    sizes = [
        [
            row["name"],
            str(row["things"]),
            number_text(None if row["far"] is None else 100 * row["far"], ".0f"),
            number_text(row["best"], ".2f"),
            number_text(row["anchors"], ".1f"),
        ]
        for row in run["sizes"]
    ]
    levels = [
        [f"1/{row['stride']}", number_text(row["anchors"], ".0f"), number_text(row["learn"], ".1f")] for row in run["levels"]
    ]
    positive, negative, _ = run["thresholds"]
    return [
        Figures([figure]),
        Table(
            f"Things and anchors by size, {name}",
            ["size", "things", "far, %", "best overlap", "anchors that learn one"],
            sizes,
            notes=[
                "Small: less than 32 x 32 pixels of the resized image; large: at least 96 x 96. Far: the best anchor overlaps "
                "the thing by less than half."
            ],
        ),
        Table(
            f"Anchors of an image by level, {name}",
            ["level", "anchors", "learn a thing"],
            levels,
            notes=[f"An anchor learns a thing from an overlap of {positive:g} on, and background below {negative:g}."],
        ),
    ]
