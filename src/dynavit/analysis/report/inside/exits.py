"""Exits of a cascade: where images leave, and how reliable each exit's confidence is."""

from typing import TYPE_CHECKING, Any

from ..figures.canvas import FAINT, HIGH, INK
from ..figures.over_layers import run_name
from ..page import Samples, Table
from ..plate import Chapter, Plate
from ..sections.early_exit import gallery_caption, threshold_text
from ..words import percent, samples_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def exits(found: dict[str, Any]) -> Chapter:
    runs = found["runs"]
    galleries = [
        Samples(samples, f"{run_name(run)}: {gallery_caption(number, len(run['gallery']))}")
        for run in runs
        for number, images in enumerate(run["gallery"], 1)
        if (samples := samples_of(images, []))
    ]
    return Chapter(
        "Exits",
        "A cascade answers several times, and an image leaves at the first exit that is sure enough. Bars show how many images "
        "leave where. In the other panels an exit whose confidence can be trusted has its dots on the diagonal: below it, the "
        "exit is more confident than right.",
        [plate for run in runs for plate in (_shares_plate(run), _reliability_plate(run))],
        [_table(runs)],
        galleries,
    )


def _shares_plate(run: dict[str, Any]) -> Plate:
    shares = [100 * share for share in run["shares"]]

    def paint(figure: "Figure") -> None:
        axes = figure.add_subplot()
        places = range(1, len(shares) + 1)
        axes.bar(places, shares, color=HIGH, width=0.65)
        for place, share in zip(places, shares, strict=True):
            axes.annotate(f"{share:.1f} %", (place, share), (0, 3), textcoords="offset points", ha="center")
        axes.set_xticks(places, [f"exit {place}" for place in places])
        axes.set_xlim(0.4, len(shares) + 0.6)
        axes.set_ylim(0, 1.15 * max(shares) or 1)
        axes.set_ylabel("images leaving here, %")
        axes.grid(axis="y")
        axes.tick_params(axis="x", length=0)
        axes.set_title(run_name(run), fontsize=8.5, fontweight="bold", loc="left")

    caption = f"{run_name(run)}: share of the images that leave at each exit, with {_thresholds(run)}."
    return Plate(f"Share of images leaving at each exit, {run_name(run)}", caption, 2.4, paint, run["name"])


def _reliability_plate(run: dict[str, Any]) -> Plate:
    curves = [[each for each in bins if each["samples"]] for bins in run["reliability"]]
    columns = min(3, len(curves))
    rows = -(-len(curves) // columns)

    def paint(figure: "Figure") -> None:
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for number, axes in enumerate(grid.flat):
            if number >= len(curves):
                axes.set_visible(False)
                continue
            axes.plot((0, 100), (0, 100), color=FAINT, lw=0.8, dashes=(4, 2))
            points = [(100 * each["confidence"], 100 * each["accuracy"], each["samples"]) for each in curves[number]]
            total = sum(samples for *_, samples in points) or 1
            axes.plot([x for x, *_ in points], [y for _, y, _ in points], color=HIGH, lw=1)
            axes.scatter(
                [x for x, *_ in points],
                [y for _, y, _ in points],
                s=[8 + 90 * samples / total for *_, samples in points],
                color=HIGH,
                alpha=0.7,
                lw=0,
            )
            axes.set(xlim=(0, 103), ylim=(0, 103), aspect="equal", xticks=(0, 50, 100), yticks=(0, 50, 100))
            axes.set_title(f"exit {number + 1}", fontsize=8.5, color=INK)
            axes.tick_params(labelsize=7.5, labelbottom=number + columns >= len(curves))
        figure.supxlabel("confidence, %", fontsize=8.5)
        figure.supylabel("accuracy, %", fontsize=8.5)

    caption = (
        f"{run_name(run)}: accuracy over confidence of each exit on all images. Larger dots hold more images; dashed: as often "
        "right as confident."
    )
    height = 0.5 + rows * (min(2.4, 3.6 / columns - 0.1) + 0.22)
    return Plate(f"Reliability of each exit, {run_name(run)}", caption, height, paint, run["name"])


def _table(runs: list[dict[str, Any]]) -> Table:
    rows = []
    for run in runs:
        columns = zip(run["thresholds"], run["shares"], run["accuracy"], strict=True)
        for number, (threshold, share, accuracy) in enumerate(columns, 1):
            rows.append([f"{run_name(run)}, exit {number}", threshold_text(threshold), percent(share), percent(accuracy)])
        rows.append([f"{run_name(run)}, images leaving", "", percent(1.0), percent(run.get("accuracy_with_exits"))])
    header = ["", "leaves from", "images leaving here, %", "accuracy on all images, %"]
    return Table("Exits", header, rows, notes=[f"{run_name(run)}: {_thresholds(run)}." for run in runs])


def _thresholds(run: dict[str, Any]) -> str:
    if run["calibrated"]:
        return "the thresholds of its calibration"
    return "thresholds that share these images out evenly, for it was not calibrated"
