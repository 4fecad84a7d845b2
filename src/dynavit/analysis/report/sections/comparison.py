"""The sections of a page about a comparison."""

from collections.abc import Sequence

from ....common.metric import NOTHING
from ...statistics import mean
from ..blocks import Block, Facts, Figure, Figures, Section, Table
from ..figures.dots import DotRow, dots_figure, mean_row, mean_rows_caption
from ..read import Comparison, Run, Setting
from ..table import comparison_header, comparison_rows, difference, table_notes
from ..words import difference_unit, heading_on, number_text, plain_name, speeds
from .facts import facts_of, machine_text, notes_section
from .inside import inside_sections
from .lambdas import lambda_section
from .robustness import robustness_comparison
from .training import comparison_training


def comparison_sections(comparison: Comparison, of_task: Sequence[Section] = ()) -> list[Section]:
    """`of_task`: the sections that only the task of the `example_run` knows."""
    learned = [shown for setting in comparison.settings if (shown := first_run(comparison, setting))]
    return [
        what_was_run(comparison),
        results_section(comparison),
        comparison_training(comparison),
        cost_section(comparison),
        *of_task,
        lambda_section(learned, comparison.inside.kinds),
        robustness_comparison(comparison),
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


def results_section(comparison: Comparison) -> Section:
    rows = comparison_rows(comparison)
    table = Table(
        "Results and cost of each setting",
        comparison_header(comparison),
        [[row.name, *row.cells] for row in rows],
        frozenset((number, 1) for number, row in enumerate(rows) if row.best),
        table_notes(comparison),
    )
    figures = [figure for figure in (result_dots(comparison), difference_dots(comparison)) if figure]
    return Section("Results", [table, Figures(figures)] if figures else [table])


def result_dots(comparison: Comparison) -> Figure | None:
    """None without a metric to judge by."""
    metric = comparison.main_metric
    if metric is None:
        return None
    rows = [
        mean_row(setting.name, comparison.series(setting), [metric.factor * value for value in results.values()])
        for setting in comparison.settings
        if (results := comparison.results(setting))
    ]
    side = "right" if metric.better == "larger" else "left"
    caption = f"{mean_rows_caption(rows)} Further {side} is better."
    return dots_figure(f"{plain_name(metric)} of each setting", caption, heading_on(metric, comparison.split), rows)


def difference_dots(comparison: Comparison) -> Figure | None:
    baseline, metric = comparison.baseline, comparison.main_metric
    if baseline is None or metric is None:
        return None
    its, rows = comparison.results(baseline), []
    for setting in comparison.settings:
        if found := difference(comparison, setting):
            pairs = [metric.factor * (own - its[seed]) for seed, own in comparison.results(setting).items() if seed in its]
            low, high = found.interval or (0.0, 0.0)
            interval = (metric.factor * low, metric.factor * high) if found.interval else None
            rows.append(DotRow(setting.name, comparison.series(setting), metric.factor * found.mean, interval, pairs))
    several = "means, 95 % intervals and single seeds. A line that crosses 0 does not tell the two apart."
    one = "without intervals, for there is no spread to estimate them from."
    verdict = several if any(row.interval for row in rows) else one
    unit = difference_unit(metric)
    return dots_figure(
        f"Paired difference of each setting to {baseline.name}",
        f"Differences to {baseline.name}, paired by seed: {verdict}",
        f"difference to {baseline.name}" + (f", {unit}" if unit else ""),
        rows,
        line_at=0,
    )


def cost_section(comparison: Comparison) -> Section:
    if not any(setting.cost for setting in comparison.settings):
        return Section("Cost")
    baseline = comparison.baseline.name if comparison.baseline else "the baseline"
    of_what, rates = evaluation_speed(comparison)
    rows, dots = [], []
    for setting in comparison.settings:
        cost, quartiles = setting.cost, setting.cost.get("step_ratio_quartiles")
        seconds, ratio = cost.get("step_seconds"), cost.get("step_ratio")
        rows.append(
            [
                setting.name,
                number_text(None if seconds is None else 1000 * seconds, ".1f"),
                number_text(ratio, ".2f", "×"),
                f"{quartiles[0]:.2f}–{quartiles[1]:.2f}" if quartiles else NOTHING,
                *([number_text(rates.get(setting.name), ",.0f")] if rates else []),
            ]
        )
        if ratio is not None:
            dots.append(DotRow(setting.name, comparison.series(setting), ratio, tuple(quartiles) if quartiles else None))
    header = [comparison_header(comparison)[0], "step, ms", f"step / {baseline}", "quartiles"]
    notes = ["Times were measured on the machine above; the quartiles are those of the repeated ratios."]
    if rates:
        header.append(f"evaluation {of_what}, images/s")
        notes.append("Evaluation speed is the mean over the finished runs; runs at the same time slow each other down.")
    blocks: list[Block] = [Table("Cost of each setting", header, rows, notes=notes)]
    figure = dots_figure(
        f"Time of a training step relative to {baseline}",
        f"Time of a training step relative to {baseline}; lines reach from the lower to the upper quartile of the repeats. "
        "Further left is faster.",
        f"time of a training step / {baseline}",
        dots,
        line_at=1,
    )
    return Section("Cost", [*blocks, Figures([figure])] if figure else blocks)


def evaluation_speed(comparison: Comparison) -> tuple[str, dict[str, float]]:
    """The mean of each setting by name: of the model alone, or with loading where some run has measured only that."""
    split = comparison.split
    found = {each.name: [speeds(run.evaluations[split]) for run in each.evaluated(split)] for each in comparison.settings}
    for column, of_what in enumerate(("of the model", "with loading")):
        rates = {name: [pair[column] for pair in pairs] for name, pairs in found.items() if pairs}
        if rates and all(rate is not None for several in rates.values() for rate in several):
            return of_what, {name: mean([rate for rate in several if rate is not None]) for name, several in rates.items()}
    return "", {}


def unfinished(comparison: Comparison) -> list[str]:
    notes = []
    for setting in comparison.settings:
        done = len(setting.finished)
        if done < setting.planned:
            notes.append(f"{setting.name}: {done} of {setting.planned} seeds have finished; the others are left out.")
    return notes + [f"{run} failed: {why}" for run, why in comparison.failures.items()]


def example_run(comparison: Comparison) -> Run | None:
    """The run whose own sections are shown: of the best setting, the first seed (not the best). Without a metric to judge by,
    of the first setting that has a finished run."""
    means = {s: mean(list(results.values())) for s in comparison.settings if (results := comparison.results(s))}
    if comparison.main_metric and means:
        return first_run(comparison, comparison.main_metric.best(means))
    return next((setting.finished[0] for setting in comparison.settings if setting.finished), None)


def first_run(comparison: Comparison, setting: Setting) -> Run | None:
    return next(iter(setting.evaluated(comparison.split) or setting.finished or setting.runs), None)
