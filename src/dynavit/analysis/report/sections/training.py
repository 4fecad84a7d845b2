"""Curves over training: the main metric and the loss."""

from ..blocks import Figures, Section
from ..figures.canvas import series_style
from ..figures.curves import curves_figure, over_seeds
from ..read import LOSS, Comparison, Run
from ..words import direction, plain_name

CUT_OFF = "the steep beginning may be cut off"


def run_training(run: Run) -> Section:
    metric, figures = run.main_metric, []
    if metric and metric.name != LOSS.name:
        figures.append(
            curves_figure(
                f"Validation {metric.label} over epochs",
                f"{plain_name(metric)} on the validation split. {direction(metric)}; {CUT_OFF}.",
                f"validation {metric.heading}",
                [(-1, over_seeds([run.curve("eval", metric.name)]))],
                metric.factor,
            )
        )
    figures.append(
        curves_figure(
            "Loss over epochs",
            "Loss. In training, inputs may be augmented and labels mixed, so that line can lie higher. Lower is better.",
            "loss",
            [(-1, over_seeds([run.curve("eval", "loss")])), (0, over_seeds([run.curve("train", "loss")]))],
        )
    )
    drawn = [figure for figure in figures if figure]
    legend = [("validation", *series_style(-1)), ("training", *series_style(0))]
    return Section("Training", [Figures(drawn, legend)] if drawn else [])


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
                over_seeds([run.curve(kind, metric.name) for run in setting.finished or setting.runs]),
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
