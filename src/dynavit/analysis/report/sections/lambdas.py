"""λ per layer and head: of runs from their logs, and of an analysis from its numbers. Both are drawn by `figures.lambdas`."""

from collections.abc import Collection, Sequence
from typing import Any

from ..blocks import Block, Figure, Figures, Section, Text
from ..figures.lambdas import ABOUT, lambda_at_end, lambda_over_training
from ..inside.runs import run_name
from ..read import LAMBDAS, Run


def lambda_section(runs: Sequence[Run], inside: Collection[str] = ()) -> Section:
    """For each of these runs that logged λ; over training only if that is not shown `inside` already."""
    blocks: list[Block] = []
    for run in runs:
        found = {moment: run.lambdas[moment] for moment in LAMBDAS if run.lambdas.get(moment)}
        figures = [
            lambda_at_end(run.name, moment, each["epochs"][-1], {path: values[-1] for path, values in each["layers"].items()})
            for moment, each in found.items()
        ]
        if "lambda" not in inside:
            figures += _over_training(run.name, {moment: each for moment, each in found.items() if len(each["epochs"]) > 1})
        if figures:
            blocks.append(Figures(figures))
    text = Text(f"{ABOUT} It is learned for each head, separately for the mean and the variance.")
    return Section("λ per layer and head", [text, *blocks] if blocks else [])


def lambdas_of_analysis(found: dict[str, Any]) -> Section:
    """Over training only: the page of the run shows the end."""
    figures = [
        Figures(shown)
        for run in found["runs"]
        if (shown := _over_training(run_name(run), {m: run[m] for m in LAMBDAS if run[m] and run[m]["epochs"]}))
    ]
    text = Text(f"{ABOUT} Each panel is a layer, each line a head; lines that part show heads that take different roles.")
    return Section("λ during training", [text, *figures])


def _over_training(name: str, found: dict[str, Any]) -> list[Figure]:
    return [lambda_over_training(name, moment, each["epochs"], each["layers"]) for moment, each in found.items()]
