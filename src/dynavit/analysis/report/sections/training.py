"""Curves over training: the main metric and the loss."""

import re

from ..blocks import Figures, Section
from ..figures.canvas import series_style
from ..figures.curves import curves_figure, over_seeds
from ..read import LOSS, Comparison, Run
from ..words import direction, plain_name

CUT_OFF = "the steep beginning may be cut off"
WHILE = "on augmented images while the weights changed"


def run_training(run: Run) -> Section:
    metric, figures = run.main_metric, []
    if metric and metric.name != LOSS.name:
        trained = run.curve("train", metric.name)
        also = f", and in training {WHILE}" if trained else ""
        figures.append(
            curves_figure(
                f"{plain_name(metric)} over epochs",
                f"{plain_name(metric)} on the validation split{also}. {direction(metric)}; {CUT_OFF}.",
                metric.heading if trained else f"validation {metric.heading}",
                [(-1, over_seeds([run.curve("eval", metric.name)])), (0, over_seeds([trained]))],
                metric.factor,
            )
        )
    learnt = training_loss(run)
    of_what = " of the last exit" if learnt != LOSS.name else ""
    figures.append(
        curves_figure(
            f"Loss{of_what} over epochs",
            f"Loss{of_what}. In training, inputs may be augmented and labels mixed, so that line can lie higher. "
            "Lower is better.",
            f"loss{of_what}",
            [(-1, over_seeds([run.curve("eval", LOSS.name)])), (0, over_seeds([run.curve("train", learnt)]))],
        )
    )
    drawn = [figure for figure in figures if figure]
    legend = [("validation", *series_style(-1)), ("training", *series_style(0))]
    return Section("Training", [Figures(drawn, legend)] if drawn else [])


def training_loss(run: Run) -> str:
    """The training loss that can be compared with the validation's. A cascade's "loss" is the weighted sum of all exits, but
    it is validated by its last exit."""
    exits = [int(found[1]) for name in next(run.lines("train"), {}) if (found := re.fullmatch(r"loss_exit(\d+)", name))]
    return f"loss_exit{max(exits)}" if exits else LOSS.name


def comparison_training(comparison: Comparison) -> Section:
    """On the validation split, or the loss of training where there is none."""
    metrics = {metric.name: metric for metric in (comparison.shown_metric, LOSS)}
    validated = any(run.curve("eval", LOSS.name) for run in comparison.runs)
    figures = []
    for metric in metrics.values():
        kind, where = ("train", "training") if metric is LOSS and not validated else ("eval", "validation")
        curves = [
            (
                comparison.series(setting),
                over_seeds(
                    [
                        run.curve(kind, training_loss(run) if kind == "train" else metric.name)
                        for run in setting.finished or setting.runs
                    ]
                ),
            )
            for setting in comparison.settings
        ]
        bands = any(curve.low != curve.high for _, curve in curves)
        several = "Lines are means over seeds, bands reach from the lowest to the highest seed."
        lines = several if bands else "Each line is a single seed."
        reading = f"{direction(metric)}; {CUT_OFF}" if comparison.main_metric else CUT_OFF.capitalize()
        figures.append(
            curves_figure(
                f"{where.capitalize()} {metric.label} over epochs",
                f"{lines} {reading}.",
                f"{where} {metric.heading}",
                curves,
                metric.factor,
            )
        )
    drawn = [figure for figure in figures if figure]
    legend = [(setting.name, *series_style(comparison.series(setting))) for setting in comparison.settings]
    return Section("Training", [Figures(drawn, legend)] if drawn else [])
