"""Sections of ListOps: accuracies beside those of simple readers, by root operator, and row by row against the baseline."""

from typing import Any

from ....common.metric import NOTHING
from ...statistics import mcnemar, mean, wilson_interval
from ..blocks import Block, Figures, Section, Table
from ..figures.dots import DotRow, mean_row
from ..figures.ladder import ladder_figure
from ..read import Comparison, Run, Setting
from ..words import percent, split_name

READERS = (
    "Dashed lines are readers of little: the most frequent label, the most frequent label of each root operator, and readers "
    "of the top levels of the tree. A model at the root operator's line has learned to read its first token."
)
ABOUT_THE_TEST = (
    "McNemar's exact test asks, seed by seed, whether the rows that only one of the two models gets right fall unevenly; in "
    "brackets their numbers. It knows nothing of the spread between seeds, and is not corrected for the number of tests."
)


def run_sections(run: Run) -> list[Section]:
    """From the "ladder" and "by_root" of the final evaluation."""
    found = run.final
    if not found.get("ladder"):
        return []
    where = f"{run.name} on the {split_name(run.split)}"
    caption = f"{where}: the dot is its accuracy, the line Wilson's 95 % interval over rows. {READERS}"
    dots = [_row(run.name, -1, [run], run.split)]
    figure = ladder_figure(f"Accuracy of {where} beside simple readers", caption, dots, found["ladder"])
    rows = [[entry["root"], f"{entry['samples']:,}", percent(entry["accuracy"])] for entry in found.get("by_root") or []]
    table = Table(f"Accuracy of {where} by the root of the expression", ["root", "rows", "accuracy, %"], rows)
    blocks: list[Block] = [Figures([figure])] if figure else []
    return [Section(f"What the accuracy of {run.name} means", [*blocks, table])]


def comparison_sections(comparison: Comparison) -> list[Section]:
    """A row for each setting that was evaluated."""
    split = comparison.split
    shown = [setting for setting in comparison.settings if setting.evaluated(split)]
    ladder: list[Any] = shown[0].evaluated(split)[0].evaluations[split].get("ladder") or [] if shown else []
    if not ladder:
        return []
    rungs = {rung["name"]: rung["accuracy"] for rung in ladder}
    dots = [_row(each.name, comparison.series(each), each.evaluated(split), split) for each in shown]
    several = any(len(setting.evaluated(split)) > 1 for setting in shown)
    spread = "± one standard error over seeds, small dots the seeds" if several else "Wilson's 95 % intervals over rows"
    label = f"Accuracy of each setting on the {split_name(split)} beside simple readers"
    figure = ladder_figure(label, f"Large dots are accuracies, lines {spread}. {READERS}", dots, ladder)
    against = str(comparison.baseline.values["norm"]) if comparison.baseline else "the baseline"
    table = Table(
        "What the accuracies mean",
        ["setting", "accuracy, %", "past the middle", "steps to it", f"McNemar's p, against {against}"],
        [_cells(comparison, setting, rungs) for setting in shown],
        notes=[
            "Readers: " + ", ".join(f"{name} {accuracy:.1%}" for name, accuracy in rungs.items()) + ".",
            f"The middle between the majority class and the root operator is {_middle(rungs):.1%}: how many seeds end above "
            "it, and at which step the training accuracy, averaged since the line of the log before, first was.",
            ABOUT_THE_TEST,
        ],
    )
    return [Section("What the accuracies mean", [*([Figures([figure])] if figure else []), table])]


def _row(name: str, series: int, runs: list[Run], split: str) -> DotRow:
    """The mean over several seeds, or one run with the interval over its rows."""
    found = [run.evaluations[split] for run in runs]
    if len(found) > 1:
        return mean_row(name, series, [100 * each["accuracy"] for each in found])
    right = round(found[0]["accuracy"] * found[0]["samples"])
    low, high = wilson_interval(right, found[0]["samples"])
    return DotRow(name, series, 100 * found[0]["accuracy"], (100 * low, 100 * high))


def _cells(comparison: Comparison, setting: Setting, rungs: dict[str, float]) -> list[str]:
    runs = setting.evaluated(comparison.split)
    accuracies = [run.evaluations[comparison.split]["accuracy"] for run in runs]
    above = sum(accuracy > _middle(rungs) for accuracy in accuracies)
    steps = [step for run in runs if (step := steps_to(run, _middle(rungs))) is not None]
    reached = f"{mean(steps):.0f}" + (f" ({len(steps)} of {len(runs)})" if len(steps) < len(runs) else "") if steps else NOTHING
    return [setting.name, percent(mean(accuracies)), f"{above} of {len(runs)}", reached, _tests(comparison, setting)]


def _middle(rungs: dict[str, float]) -> float:
    return (rungs["majority"] + rungs["root operator"]) / 2


def steps_to(run: Run, accuracy: float) -> int | None:
    """The step of the first training line above an accuracy; None if there is none."""
    return next((line["step"] for line in run.lines("train") if (line.get("accuracy") or 0) > accuracy), None)


def _reference(comparison: Comparison, setting: Setting) -> Setting | None:
    """The setting with the baseline's norm and otherwise the same values."""
    if comparison.baseline is None:
        return None
    wanted = {**setting.values, "norm": comparison.baseline.values["norm"]}
    return next((each for each in comparison.settings if each.values == wanted), None)


def _tests(comparison: Comparison, setting: Setting) -> str:
    """p-values by seed, with the rows that only this setting and only the reference got right."""
    reference = _reference(comparison, setting)
    if reference is None or reference is setting:
        return NOTHING
    others = {run.seed: run.evaluations[comparison.split] for run in reference.evaluated(comparison.split)}
    texts = []
    for run in setting.evaluated(comparison.split):
        own, other = run.evaluations[comparison.split], others.get(run.seed)
        if other is not None and (found := disagreements(own, other)) is not None:
            texts.append(f"{_p_text(mcnemar(*found))} ({found[0]} : {found[1]})")
    return ", ".join(texts) or NOTHING


def disagreements(one: dict[str, Any], other: dict[str, Any]) -> tuple[int, int] | None:
    """(rows only one gets right, rows only the other gets right); None if they were not asked the same."""
    if not one.get("labels") or one["labels"] != other.get("labels"):
        return None
    rows = list(zip(one["labels"], one["predictions"], other["predictions"], strict=True))
    return sum(a == label != b for label, a, b in rows), sum(b == label != a for label, a, b in rows)


def _p_text(p: float) -> str:
    """
    >>> _p_text(0.0401), _p_text(0.00001)
    ('0.040', '< 0.001')
    """
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"
