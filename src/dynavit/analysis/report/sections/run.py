"""The sections of a page about one run."""

from collections.abc import Sequence

from ....common.metric import NOTHING, Metric
from ..blocks import Facts, Section, Table, Text
from ..read import Run
from ..words import SPLITS, integer_text, number_text
from .facts import facts_of, flat, notes_section
from .inside import inside_sections
from .lambdas import lambda_section
from .robustness import robustness_section
from .training import run_training


def run_sections(run: Run, of_task: Sequence[Section] = ()) -> list[Section]:
    """`of_task`: the sections that only the run's task knows, which stand after the training."""
    return [
        Section("What was run", [*facts_of([run]), Facts(flat(run.environment), "Machine and versions")]),
        results_section(run),
        run_training(run),
        *of_task,
        lambda_section([run], run.inside.kinds),
        robustness_section(run),
        notes_section([run]),
        *inside_sections(run.inside),
    ]


def results_section(run: Run) -> Section:
    """A row for each evaluation, a column for each metric that any of them has."""
    if not run.evaluations:
        return Section("Results", [Text("This run has not been evaluated yet.")])
    found = {metric.name: metric for each in run.evaluations.values() for metric in run.metrics_of(each)}
    metrics: list[Metric] = list(found.values())
    speeds = {name: (each.get("throughput") or {}).get("images_per_second") for name, each in run.evaluations.items()}
    timed = any(speed is not None for speed in speeds.values())
    rows = [
        [
            name,
            SPLITS.get(each.get("split", ""), each.get("split", NOTHING)),
            each.get("weights", NOTHING),
            integer_text(each.get("samples")),
            *(metric.number(each.get(metric.name)) for metric in metrics),
            *([number_text(speeds[name], ",.0f")] if timed else []),
        ]
        for name, each in run.evaluations.items()
    ]
    header = ["evaluation", "data", "weights", "samples", *(metric.heading for metric in metrics)]
    notes = ["One run has no error bar."] if metrics else []
    return Section(
        "Results",
        [Table("Results of the evaluations", [*header, *(["images/s"] if timed else [])], rows, notes=notes)],
    )
