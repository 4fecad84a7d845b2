"""What a page says about a comparison."""

from typing import Any

from ...statistics import mean, standard_error
from ..figures.canvas import series_style
from ..figures.curves import curves_figure, over_seeds
from ..figures.dots import DotRow, dots_figure
from ..page import Block, Facts, Figure, Figures, Section, Table
from ..read import Comparison, Run, Setting
from ..table import (
    NOTHING,
    accuracies,
    comparison_header,
    comparison_rows,
    difference,
    number_text,
    table_notes,
)
from ..words import SPLITS
from .early_exit import early_exit_section
from .inside import inside_sections
from .robustness import robustness_comparison
from .run import facts_of, lambda_section, mistakes_section, notes_section


def comparison_sections(comparison: Comparison) -> list[Section]:
    example = example_run(comparison)
    learned = [shown for setting in comparison.settings if (shown := first_run(setting, comparison.split))]
    return [
        what_was_run(comparison),
        results_section(comparison),
        training_section(comparison),
        cost_section(comparison),
        early_exit_section(example, comparison.inside.kinds) if example else Section(""),
        lambda_section(learned, comparison.inside.kinds),
        mistakes_section(example, comparison.split) if example else Section(""),
        robustness_comparison(comparison, {setting.name: series(comparison, setting) for setting in comparison.settings}),
        notes_section(comparison.runs, unfinished(comparison)),
        *inside_sections(comparison.inside),
    ]


def what_was_run(comparison: Comparison) -> Section:
    rows = [
        (" × ".join(comparison.varied) or "settings", ", ".join(setting.name for setting in comparison.settings)),
        ("seeds", ", ".join(map(str, comparison.seeds))),
        ("machine", machine_text(comparison.machine)),
        ("command", comparison.command),
    ]
    return Section("What was run", [Facts([row for row in rows if row[1]]), *facts_of(comparison.runs, comparison.varied)])


def machine_text(machine: dict[str, Any]) -> str:
    """
    >>> machine_text({"date": "today", "processor": "Some CPU", "cores": 2, "threads": 1, "torch": "2.13.0"})
    'Some CPU, 2 cores, 1 thread, torch 2.13.0'
    """
    parts = []
    for name, value in machine.items():
        if isinstance(value, int):
            parts.append(f"{value} {name.removesuffix('s') if value == 1 else name}")
        elif name != "date":
            parts.append(str(value) if name == "processor" else f"{name} {value}")
    return ", ".join(parts)


def results_section(comparison: Comparison) -> Section:
    rows = comparison_rows(comparison)
    table = Table(
        "Accuracy and cost of each setting",
        comparison_header(comparison),
        [[row.name, *row.cells] for row in rows],
        frozenset((number, 1) for number, row in enumerate(rows) if row.best),
        table_notes(comparison),
    )
    figures = [figure for figure in (accuracy_dots(comparison), difference_dots(comparison)) if figure]
    return Section("Results", [table, Figures(figures)] if figures else [table])


def accuracy_dots(comparison: Comparison) -> Figure | None:
    rows = []
    for setting in comparison.settings:
        values = [100 * value for value in accuracies(comparison, setting).values()]
        if values:
            centre, error = mean(values), standard_error(values)
            interval = None if error is None else (centre - error, centre + error)
            rows.append(DotRow(setting.name, series(comparison, setting), centre, interval, values))
    if not (svg := dots_figure("accuracy", f"accuracy on the {SPLITS[comparison.split]}, %", rows)):
        return None
    several = "Large dots are means, lines ± one standard error, small dots the single seeds."
    caption = f"{several if any(row.interval for row in rows) else 'Each dot is a single seed.'} Further right is better."
    return Figure(svg, "Accuracy of each setting", caption)


def difference_dots(comparison: Comparison) -> Figure | None:
    baseline = comparison.baseline
    rows = []
    for setting in comparison.settings:
        found = difference(comparison, setting)
        if baseline and found:
            own, its = accuracies(comparison, setting), accuracies(comparison, baseline)
            pairs = [100 * (own[seed] - its[seed]) for seed in own if seed in its]
            interval = (100 * found.interval[0], 100 * found.interval[1]) if found.interval else None
            rows.append(DotRow(setting.name, series(comparison, setting), 100 * found.mean, interval, pairs))
    if not baseline or not (
        svg := dots_figure("difference", f"difference to {baseline.name}, percentage points", rows, zero=0)
    ):
        return None
    several = "means, 95 % intervals and single seeds. A line that crosses 0 does not tell the two apart."
    one = "without intervals, for there is no spread to estimate them from."
    verdict = several if any(row.interval for row in rows) else one
    caption = f"Differences to {baseline.name}, paired by seed: {verdict}"
    return Figure(svg, f"Paired difference of each setting to {baseline.name}", caption)


def training_section(comparison: Comparison) -> Section:
    figures = []
    for value, label, better in (("top1", "accuracy, %", "Higher"), ("loss", "loss", "Lower")):
        curves = [
            (
                series(comparison, setting),
                over_seeds([run.curve("eval", value) for run in setting.finished(comparison.split) or setting.runs]),
            )
            for setting in comparison.settings
        ]
        if svg := curves_figure(f"validation {value}", f"validation {label}", curves, percent=value == "top1"):
            bands = any(curve.low != curve.high for _, curve in curves)
            several = "Lines are means over seeds, bands reach from the lowest to the highest seed."
            lines = several if bands else "Each line is a single seed."
            caption = f"{lines} {better} is better; the steep beginning may be cut off."
            figures.append(Figure(svg, f"Validation {label.split(',')[0]} over epochs", caption))
    legend = [(setting.name, *series_style(series(comparison, setting))) for setting in comparison.settings]
    return Section("Training", [Figures(figures, legend)] if figures else [])


def cost_section(comparison: Comparison) -> Section:
    if not any(setting.cost for setting in comparison.settings):
        return Section("Cost")
    baseline = comparison.baseline.name if comparison.baseline else "the baseline"
    header = [comparison_header(comparison)[0], "step, ms", f"step / {baseline}", "quartiles", "evaluation, images/s"]
    rows = []
    dots = []
    for setting in comparison.settings:
        cost, quartiles = setting.cost, setting.cost.get("step_ratio_quartiles")
        seconds, ratio = cost.get("step_seconds"), cost.get("step_ratio")
        rows.append(
            [
                setting.name,
                number_text(None if seconds is None else 1000 * seconds, ".1f"),
                number_text(ratio, ".2f", "×"),
                f"{quartiles[0]:.2f}–{quartiles[1]:.2f}" if quartiles else NOTHING,
                number_text(throughput(setting, comparison.split), ",.0f"),
            ]
        )
        if ratio is not None:
            dots.append(DotRow(setting.name, series(comparison, setting), ratio, tuple(quartiles) if quartiles else None))
    notes = [
        "Times were measured on the machine above; the quartiles are those of the repeated ratios.",
        "Evaluation speed is the mean over the finished runs; runs at the same time slow each other down.",
    ]
    blocks: list[Block] = [Table("Cost of each setting", header, rows, notes=notes)]
    if svg := dots_figure("cost", f"time of a training step / {baseline}", dots, zero=1):
        caption = (
            f"Time of a training step relative to {baseline}; lines reach from the lower to the upper quartile of the repeats. "
            "Further left is faster."
        )
        blocks.append(Figures([Figure(svg, f"Time of a training step relative to {baseline}", caption)]))
    return Section("Cost", blocks)


def throughput(setting: Setting, split: str) -> float | None:
    found = [run.evaluations[split].get("throughput") or {} for run in setting.finished(split)]
    rates = [each["images_per_second"] for each in found if "images_per_second" in each]
    return mean(rates) if rates else None


def unfinished(comparison: Comparison) -> list[str]:
    notes = []
    for setting in comparison.settings:
        done = len(setting.finished(comparison.split))
        if done < setting.planned:
            notes.append(f"{setting.name}: {done} of {setting.planned} seeds have finished; the others are left out.")
    return notes + [f"{run} failed: {why}" for run, why in comparison.failures.items()]


def example_run(comparison: Comparison) -> Run | None:
    """The one whose mistakes are shown: of the setting with the highest mean accuracy, the first seed (not the best)."""
    scored = [(mean(list(values.values())), s) for s in comparison.settings if (values := accuracies(comparison, s))]
    return first_run(max(scored, key=lambda pair: pair[0])[1], comparison.split) if scored else None


def first_run(setting: Setting, split: str) -> Run | None:
    return next(iter(setting.finished(split) or setting.runs), None)


def series(comparison: Comparison, setting: Setting) -> int:
    """The baseline is -1 and drawn in ink, the others are counted from 0."""
    others = [each for each in comparison.settings if each is not comparison.baseline]
    return -1 if setting is comparison.baseline else others.index(setting)
