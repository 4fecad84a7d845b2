"""A comparison as rows: each number once, in words that claim no more than the seeds support."""

from dataclasses import dataclass

from ...common.metric import NOTHING, Metric
from ..statistics import PairedDifference, mean, paired_difference
from .read import Comparison, Setting
from .words import (
    difference_unit,
    direction,
    integer_text,
    mean_text,
    number_text,
    plain_name,
    seeds_text,
    signed,
    split_name,
)


@dataclass(frozen=True)
class Row:
    """One setting. `best`: it has the best mean of those with several seeds, which need not mean much."""

    name: str
    best: bool
    cells: tuple[str, ...]


def comparison_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and rows for a terminal; `*` marks the best mean; `table_notes` says what that is worth."""
    rows = [[row.name, row.cells[0] + (" *" if row.best else ""), *row.cells[1:]] for row in comparison_rows(comparison)]
    return comparison_header(comparison), rows


def comparison_header(comparison: Comparison) -> list[str]:
    first = comparison.varied[0] if len(comparison.varied) == 1 else "setting"
    differences = [difference_heading(comparison), "excludes 0"] if comparison.main_metric else []
    epochs = ["epochs"] if at_equal_time(comparison) else []
    return [first, comparison.shown_metric.heading, "seeds", *differences, "parameters", "GMACs", "time per step", *epochs]


def at_equal_time(comparison: Comparison) -> bool:
    """Whether settings were given epochs by their cost, rather than the same number."""
    return any("epochs" in setting.cost for setting in comparison.settings)


def difference_heading(comparison: Comparison) -> str:
    baseline = comparison.baseline.name if comparison.baseline else "baseline"
    unit = difference_unit(comparison.shown_metric).removeprefix("percentage ")
    return f"difference to {baseline}" + (f", {unit}" if unit else "")


def comparison_rows(comparison: Comparison) -> list[Row]:
    """Differences are shown only if the task names a metric to judge by."""
    best, metric = best_setting(comparison), comparison.main_metric
    rows = []
    for setting in comparison.settings:
        results = comparison.results(setting)
        cells = (
            mean_text(list(results.values()), comparison.shown_metric),
            seeds_text(len(results), setting.planned),
            *(difference_text(difference(comparison, setting), metric) if metric else ()),
            integer_text(setting.cost.get("parameters")),
            number_text(setting.cost.get("gmacs"), ".3g"),
            number_text(setting.cost.get("step_ratio"), ".2f", "×"),
            *((number_text(setting.cost.get("epochs"), ".4g"),) if at_equal_time(comparison) else ()),
        )
        rows.append(Row(setting.name, setting is best, cells))
    return rows


def table_notes(comparison: Comparison) -> list[str]:
    """Explanations of the signs in the table, one sentence each."""
    if not any(comparison.results(setting) for setting in comparison.settings):
        finished = any(setting.finished for setting in comparison.settings)
        return ["No run has been evaluated." if finished else "No run has finished yet."]
    baseline = comparison.baseline.name if comparison.baseline else None
    notes = [_about_results(comparison)]
    if baseline and any(d and d.interval for d in (difference(comparison, s) for s in comparison.settings)):
        unit = difference_unit(comparison.shown_metric)
        notes.append(
            f"Differences to {baseline} are {f'in {unit}, ' if unit else ''}paired by seed, with 95 % Student-t intervals in "
            "brackets, not corrected for the number of rows. An interval that includes 0 does not tell the two apart."
        )
    if any(setting.cost for setting in comparison.settings):
        notes.append(
            "GMACs are thousand millions of multiply-adds for one image; time per step is that of training"
            + (f", relative to {baseline}." if baseline else ", relative to the baseline.")
        )
    if at_equal_time(comparison):
        notes.append(
            f"Settings were trained for equal time: as many epochs each as fit into that of {baseline or 'the baseline'}, by "
            "the time per step measured before the first run."
        )
    if best := best_setting(comparison):
        others = [setting for setting in comparison.settings if setting is not best and comparison.results(setting)]
        apart = [setting.name for setting in others if told_apart(comparison, setting, best)]
        close = [setting.name for setting in others if setting.name not in apart]
        verdicts = ["separates it from " + ", ".join(apart)] if apart else []
        verdicts += ["does not separate it from " + ", ".join(close)] if close else []
        extreme = "highest" if comparison.shown_metric.better == "larger" else "lowest"
        notes.append(f"Marked: {best.name}, the {extreme} mean. The paired 95 % interval {' and '.join(verdicts)}.")
    return notes


def _about_results(comparison: Comparison) -> str:
    counts = [count for setting in comparison.settings if (count := len(comparison.results(setting)))]
    where = f"{plain_name(comparison.shown_metric)} on the {split_name(comparison.split)}"
    judged = direction(comparison.main_metric) if comparison.main_metric else "The task names no metric to judge settings by"
    if max(counts) == 1:
        return f"{where} with one seed: there is no spread, so neither ± nor interval. {judged}."
    n = f"n = {max(counts)}" if min(counts) == max(counts) else f"n = {min(counts)} to {max(counts)}"
    return f"{where}: mean ± standard error of the mean over {n} seeds. {judged}."


def difference(comparison: Comparison, setting: Setting) -> PairedDifference | None:
    """To the baseline; None for the baseline itself, where there is nothing to pair, and without a metric to judge by."""
    if comparison.main_metric is None or comparison.baseline is None or setting is comparison.baseline:
        return None
    return paired_difference(comparison.results(setting), comparison.results(comparison.baseline))


def best_setting(comparison: Comparison) -> Setting | None:
    """The best mean; None where single seeds, a single setting or no metric to judge by leave nothing to compare."""
    means = {s: mean(list(found.values())) for s in comparison.settings if len(found := comparison.results(s)) > 1}
    if comparison.main_metric is None or len(means) < 2:
        return None
    return comparison.main_metric.best(means)


def told_apart(comparison: Comparison, one: Setting, other: Setting) -> bool:
    found = paired_difference(comparison.results(one), comparison.results(other))
    return found is not None and found.excludes_zero is True


def difference_text(difference: PairedDifference | None, metric: Metric) -> tuple[str, str]:
    """(difference with interval, whether that excludes 0)."""
    if difference is None:
        return NOTHING, NOTHING

    def text(value: float) -> str:
        return signed(metric.factor * value, metric.digits)

    if difference.interval is None:
        return text(difference.mean), "one seed" if difference.seeds == 1 else "no spread"
    low, high = map(text, difference.interval)
    return f"{text(difference.mean)} [{low}, {high}]", "yes" if difference.excludes_zero else "no"
