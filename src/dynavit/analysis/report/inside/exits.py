"""Exits of a cascade: where images leave, and how reliable each exit's confidence is."""

from typing import Any

from ..blocks import Figures, Samples, Section, Table, Text
from ..figures.exits import reliability_figure, shares_figure
from ..sections.early_exit import gallery_caption, threshold_text
from ..words import percent, samples_of
from .runs import RunNumbers, run_name


def exits(found: dict[str, Any]) -> Section:
    runs = found["runs"]
    text = Text(
        "A cascade answers several times, and an image leaves at the first exit that is sure enough. Bars show how many images "
        "leave where. In the other panels an exit whose confidence can be trusted has its dots on the diagonal: below it, the "
        "exit is more confident than right."
    )
    galleries = [
        Samples(samples, f"{run_name(run)}: {gallery_caption(number, len(run['gallery']))}")
        for run in runs
        for number, images in enumerate(run["gallery"], 1)
        if (samples := samples_of(images, []))
    ]
    return Section("Exits", [text, *map(_figures, runs), _table(runs), *galleries])


def _figures(run: RunNumbers) -> Figures:
    name = run_name(run)
    shares = shares_figure(
        f"Share of images leaving at each exit, {name}",
        f"{name}: share of the images that leave at each exit, with {_thresholds(run)}.",
        name,
        run["shares"],
    )
    reliability = reliability_figure(
        f"Reliability of each exit, {name}",
        f"{name}: accuracy over confidence of each exit on all images. Larger dots hold more images; dashed: as often right as "
        "confident.",
        run["reliability"],
    )
    return Figures([shares, reliability])


def _table(runs: list[RunNumbers]) -> Table:
    rows = []
    for run in runs:
        columns = zip(run["thresholds"], run["shares"], run["accuracy"], strict=True)
        for number, (threshold, share, accuracy) in enumerate(columns, 1):
            rows.append([f"{run_name(run)}, exit {number}", threshold_text(threshold), percent(share), percent(accuracy)])
        rows.append([f"{run_name(run)}, images leaving", "", percent(1.0), percent(run.get("accuracy_with_exits"))])
    header = ["", "leaves from", "images leaving here, %", "accuracy on all images, %"]
    return Table("Exits", header, rows, notes=[f"{run_name(run)}: {_thresholds(run)}." for run in runs])


def _thresholds(run: RunNumbers) -> str:
    if run["calibrated"]:
        return "the thresholds of its calibration"
    return "thresholds that share these images out evenly, for it was not calibrated"
