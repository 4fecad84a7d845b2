"""Sections of self-distillation: frozen features judged beside their baselines, and the signs of collapse over training."""

import math
from collections.abc import Iterable
from typing import Any

from ...statistics import mean, standard_error
from ..blocks import Block, Figure, Figures, Notes, Section, Table
from ..figures.canvas import series_style
from ..figures.curves import curves_figure, over_seeds
from ..read import OF_TASK, Comparison, Run, Setting
from ..words import percent

WHO = {"model": "features", "random": "the same network, random weights", "pixels": "pixels"}
CURVES = (
    (
        "information",
        "information, nats",
        "Information that a code carries about its image (entropy of the mean code less the mean entropy of a code). It falls "
        "to 0 where codes collapse, whether to one prototype or to a uniform code.",
    ),
    (
        "code_entropy",
        "mean entropy of a code, nats",
        "Mean entropy of the teacher's codes. A uniform code has the logarithm of the number of prototypes, a single one 0.",
    ),
    ("effective_rank", "effective rank", "Directions that the teacher's features spread over; 1 where all are the same."),
    ("prototypes_used", "prototypes", "Prototypes that are the largest of at least one code in a window."),
)


def run_sections(run: Run) -> list[Section]:
    figures: list[Figure | None] = [
        curves_figure(f"{label} over epochs".capitalize(), text, label, [(-1, over_seeds([logged(run, name)]))])
        for name, label, text in CURVES
    ]
    kl = run.curve("train", "kl")
    about = (
        "Divergence of the student's answers from the teacher's codes. Towards 0 either all is learned or all codes are alike."
    )
    figures.append(curves_figure("Divergence over epochs", about, "divergence, nats", [(-1, over_seeds([kl]))]))
    drawn = [figure for figure in figures if figure]
    seen = [line["text"] for line in run.lines("note") if str(line.get("text", "")).startswith("collapse (")]
    blocks: list[Block] = [Notes(seen)] if seen else []
    if drawn:
        blocks.append(Figures(drawn))
    return [*probe_sections(run), Section("Codes over training", blocks)] if blocks else probe_sections(run)


def probe_sections(run: Run) -> list[Section]:
    """A table for all protocols, and what each of them says."""
    rows = [
        [name, WHO[who], percent(found[who]["top1"]), percent(found[who]["top5"])]
        for name, found in run.probes.items()
        for who in WHO
    ]
    if not rows:
        return []
    said = [
        f"{name}, {found['images']:,} images of {found['split']}, {found['train_images']:,} to learn from: {found['verdict']}."
        for name, found in run.probes.items()
    ]
    table = Table(f"Frozen features of {run.name}", ["protocol", "by", "top-1, %", "top-5, %"], rows, notes=said)
    return [Section("Frozen features", [table])]


def comparison_sections(comparison: Comparison) -> list[Section]:
    """Protocols of each setting, as means over seeds; the signs of collapse side by side."""
    protocols = sorted({name for run in comparison.runs for name in run.probes})
    header = ["setting", *(f"{name}, {who}" for name in protocols for who in ("features", "random", "pixels"))]
    rows = [[each.name, *(cell for name in protocols for cell in _cells(each, name))] for each in comparison.settings]
    blocks: list[Block] = []
    if protocols:
        spread = "Top-1, %; ± is one standard error over seeds."
        blocks.append(Table("Frozen features", header, rows, notes=[spread]))
    figures = [
        curves_figure(
            f"{label} over epochs".capitalize(),
            f"{text} Lines are means over seeds, bands reach from the lowest to the highest.",
            label,
            [(comparison.series(each), over_seeds([logged(run, name) for run in each.runs])) for each in comparison.settings],
        )
        for name, label, text in CURVES[:3]
    ]
    if drawn := [figure for figure in figures if figure]:
        legend = [(each.name, *series_style(comparison.series(each))) for each in comparison.settings]
        blocks.append(Figures(drawn, legend))
    return [Section("Features and codes", blocks)] if blocks else []


def logged(run: Run, name: str) -> dict[float, float]:
    """Epoch to one of the task's own scalars."""
    found: dict[float, float] = {}
    for line in run.lines("scalars"):
        values: dict[str, Any] = line["values"].get(OF_TASK) or {}
        value = (values.get(name) or [None])[0]
        if isinstance(value, int | float) and math.isfinite(value):
            found[float(line["epoch"])] = float(value)
    return found


def _cells(setting: Setting, protocol: str) -> Iterable[str]:
    for who in ("model", "random", "pixels"):
        values = [100 * run.probes[protocol][who]["top1"] for run in setting.runs if protocol in run.probes]
        spread = f" ± {standard_error(values):.2f}" if len(values) > 1 else ""
        yield f"{mean(values):.2f}{spread}" if values else "–"
