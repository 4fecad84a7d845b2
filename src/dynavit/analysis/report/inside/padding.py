"""How much the padding of a batch moves a detector's scores."""

from typing import Any

from ..blocks import Figures, Section, Table, Text
from ..figures.drift import drift_figure
from .runs import run_name

MODES = {"none": "masks off", "norm": "norms only", "all": "all"}


def padding(found: dict[str, Any]) -> Section:
    text = Text(
        "The same image, alone and in eight batches with a larger neighbour that it is padded for. With masks off padding is "
        "taken for a part of the image; “norms only” keeps it out of the statistics of norms; “all” keeps it out of attention, "
        "convolutions and positions too, and leaves rounding."
    )
    figures, rows = [], []
    for run in found["runs"]:
        name = run_name(run)
        figures.append(
            drift_figure(
                f"Change of scores by padding, {name}",
                f"{name}: the largest change of a score, over all anchors of one image and all classes. The model was trained "
                f"with padding: {run['own']}.",
                "neighbour is larger by (pixels)",
                run["batches"],
                {MODES[mode]: values["largest"] for mode, values in run["modes"].items()},
            )
        )
        for mode, values in run["modes"].items():
            rows.append([name, MODES[mode], f"{max(values['largest']):.2g}", f"{max(values['mean']):.2g}"])
    header = ["", "masks", "largest change", "mean change in the worst batch"]
    return Section("Padding", [text, Figures(figures), Table("Change of scores by padding", header, rows)])
